"""fp8 products, emulated where there is no GPU: what they round, and that a run with them stays near bf16's."""

import pytest
import torch

from shardwise.errors import RecipeError
from shardwise.train.decoder.blocks import Linear
from shardwise.train.fp8 import GRADIENTS, WEIGHTS, Fp8Linear, rounded, scaled_product, use_fp8
from train.models import GEMMA, make_job
from train.world_member import run

CPU = torch.device("cpu")


@pytest.mark.parametrize(("dtype", "relative"), [(WEIGHTS, 2**-4), (GRADIENTS, 2**-3)], ids=["e4m3", "e5m2"])
def test_numbers_near_the_largest_keep_three_or_two_bits(dtype, relative):
    matrix = torch.linspace(0.1, 1.0, 1000).view(10, 100) * 1e-5
    bits, scale = rounded(matrix, dtype)
    error = ((bits.float() * scale - matrix) / matrix).abs().max()
    assert relative / 2 < error <= relative * 1.001


def test_powers_of_two_multiply_exactly():
    a, b = torch.tensor([[1.0, 2.0, -4.0]]), torch.tensor([[0.5], [0.25], [8.0]])
    assert scaled_product(a, b, left=WEIGHTS).item() == -31.0


def test_zeros_stay_zero():
    assert scaled_product(torch.zeros(2, 3), torch.ones(3, 2), left=WEIGHTS).eq(0).all()


def test_a_layer_and_its_gradients_are_near_the_exact_ones():
    torch.manual_seed(0)
    dense = Linear(64, 32, has_bias=True)
    torch.nn.init.normal_(dense.weight)
    torch.nn.init.zeros_(dense.bias)
    x = torch.randn(4, 16, 64, requires_grad=True)
    exact = torch.nn.functional.linear(x, dense.weight)
    expected = torch.autograd.grad(exact.square().sum(), (x, dense.weight))
    out = Fp8Linear(dense)(x)
    found = torch.autograd.grad(out.square().sum(), (x, dense.weight))
    for near, far in ((out, exact), *zip(found, expected, strict=True)):
        assert 0.001 < (near - far).norm() / far.norm() < 0.08


@pytest.mark.runs
def test_a_compiled_layer_rounds_alike():
    torch.manual_seed(1)
    dense = Linear(32, 16)
    torch.nn.init.normal_(dense.weight)
    layer, x = Fp8Linear(dense), torch.randn(16, 32)
    compiled = torch.compile(layer, dynamic=False)
    found, expected = (torch.autograd.grad(made(x).square().sum(), dense.weight)[0] for made in (compiled, layer))
    assert (found - expected).norm() < 0.02 * expected.norm()


def test_sizes_the_hardware_cannot_multiply_are_refused():
    with pytest.raises(RecipeError, match="multiples of 16, and 0 multiplies 32 tokens with 24 x 64"):
        use_fp8([torch.nn.Sequential(Linear(64, 24))], num_tokens=32, device=CPU)


@pytest.fixture(scope="module")
def fp8_alone(worlds):
    return worlds[1].run(run, make_job(num_steps=4, micro_batch_size=1, precision="fp8-mixed"))[0]


@pytest.mark.parametrize(
    ("layout", "relative"),
    [
        ({"dp_shard": 2}, 1e-5),
        pytest.param({"dp_replicate": 2, "zero_stage": 0}, 1e-5, marks=pytest.mark.runs),
        ({"tp": 2}, 1e-3),
    ],
    ids=str,
)
def test_fp8_learns_alike_whatever_the_layout(worlds, fp8_alone, layout, relative):
    """Ranks that hold parts of a matrix scale each part by its own largest number, as all do with each micro-batch."""
    for result in worlds[2].run(run, make_job(layout=layout, num_steps=4, micro_batch_size=1, precision="fp8-mixed")):
        assert result.losses == pytest.approx(fp8_alone.losses, rel=relative)


def test_fp8_is_not_bf16_but_near_it(worlds, fp8_alone):
    bf16 = worlds[1].run(run, make_job(num_steps=4, precision="bf16-mixed"))[0].losses
    assert fp8_alone.losses == pytest.approx(bf16, rel=5e-3)
    assert fp8_alone.losses != pytest.approx(bf16, rel=1e-6)


@pytest.mark.parametrize("recipe", [{"recompute": "selective"}, {"adapter": "lora"}], ids=str)
def test_fp8_goes_with_other_choices(worlds, recipe):
    result = worlds[2].run(run, make_job(layout={"dp_shard": 2}, num_steps=2, precision="fp8-mixed", **recipe))[0]
    assert result.losses[0] == pytest.approx(5.56, rel=5e-3)


def test_models_of_transformers_compute_in_fp8_too(worlds):
    bf16 = worlds[1].run(run, make_job(model=GEMMA, num_steps=2, precision="bf16-mixed"))[0].losses
    fp8 = worlds[2].run(run, make_job(model=GEMMA, layout={"dp_shard": 2}, num_steps=2, precision="fp8-mixed"))[0]
    assert fp8.losses == pytest.approx(bf16, rel=5e-3)
    assert fp8.losses != bf16


def test_a_router_that_is_a_linear_layer_with_a_forward_of_its_own_keeps_it():
    class Router(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).softmax(-1)

    block = torch.nn.Sequential(torch.nn.Linear(16, 16), Router(16, 16))
    use_fp8([block], num_tokens=16, device=CPU)
    assert [type(part) for part in block] == [Fp8Linear, Router]
