"""4-bit storage: what it costs, how near it stays, and that a row does not depend on its neighbours."""

import pytest
import torch

from shardwise.families import read_model
from shardwise.step.states import QUANTISED_BYTES
from shardwise.train.decoder.blocks import Linear
from shardwise.train.nf4 import NF4, QuantisedLinear, pack, packed_bytes, pair_table, unpack

TABLE = pair_table(torch.float32, torch.device("cpu"))


def restored(weight):
    return unpack(pack(weight), in_features=weight.size(1), pairs=TABLE)


def test_normal_weights_come_back_within_nine_percent():
    """NF4's mean-square error of a standard normal in blocks of 64 is near 0.0086 (one part in ten of its size)."""
    torch.manual_seed(0)
    weight = torch.randn(64, 4096)
    error = (restored(weight) - weight).pow(2).mean().sqrt().item()
    assert 0.085 < error < 0.1


def test_multiples_of_the_sixteen_values_come_back_exactly():
    weight = torch.tensor(NF4).repeat(3, 8) * torch.tensor([[0.02], [1.0], [300.0]])
    assert torch.allclose(restored(weight), weight, rtol=1e-6, atol=0)


def test_no_weight_leaves_its_block_s_range():
    torch.manual_seed(1)
    weight = torch.randn(8, 256) * torch.logspace(-4, 2, 8).unsqueeze(1)
    largest = restored(weight).view(8, 4, 64).abs().amax(2)
    assert (largest >= weight.view(8, 4, 64).abs().amax(2) * (1 - 1e-6)).all()


def test_a_row_packed_alone_is_the_row_packed_among_others():
    torch.manual_seed(2)
    weight = torch.randn(6, 192)
    assert torch.equal(pack(weight)[2:4], pack(weight[2:4]))


@pytest.mark.parametrize("in_features", [64, 96, 100, 257])
def test_any_width_is_packed(in_features):
    weight = torch.linspace(-1, 1, 5 * in_features).view(5, in_features)
    assert restored(weight).shape == weight.shape
    assert (restored(weight) - weight).abs().max() < 0.16


def test_zero_rows_stay_zero():
    assert restored(torch.zeros(2, 64)).eq(0).all()


def test_an_8b_model_s_blocks_take_what_the_plan_says():
    """The plan counts double quantisation in blocks of 256 scales, we keep one scale per row: 0.15 percent more."""
    weights = [w for layer in read_model("llama-3.1-8b").layers for w in layer.weights if w.is_matrix]
    stored = sum(w.shape[0] * packed_bytes(w.shape[1]) for w in weights)
    planned = sum(w.shape[0] * w.shape[1] for w in weights) * QUANTISED_BYTES
    assert stored / planned == pytest.approx(1.0012, abs=5e-4)


def test_the_product_and_its_gradient_are_those_of_the_restored_matrix():
    torch.manual_seed(3)
    dense = Linear(64, 24)
    torch.nn.init.normal_(dense.weight)
    layer = QuantisedLinear(dense)
    matrix = restored(dense.weight.detach())
    layer.pack()
    x = torch.randn(5, 64, requires_grad=True)
    out = layer(x)
    out.sum().backward()
    assert torch.allclose(out, x @ matrix.t(), atol=1e-5)
    assert torch.allclose(x.grad, matrix.sum(0).expand(5, 64), atol=1e-5)
    assert layer.weight.dtype == torch.float32
    assert not layer.weight.requires_grad
