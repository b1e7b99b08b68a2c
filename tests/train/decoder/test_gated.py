"""The feed-forward whose backward writes over what it reads: the same gradients, fewer tensors."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from shardwise.recipe import Recipe
from shardwise.train.decoder.blocks import FeedForward, RmsNorm
from shardwise.train.decoder.gated import gated_gradients, gated_gradients_in_place
from shardwise.train.recompute import REMADE, recompute_blocks

WIDTH = 192
"""Of the feed-forward; no other size here is."""


@dataclass
class Sizes:
    hidden_size: int = 48
    intermediate_size: int = WIDTH


class Part(torch.nn.Module):
    """A norm and a feed-forward, as in a block."""

    def __init__(self, mode):
        super().__init__()
        self.norm, self.mlp = RmsNorm(Sizes.hidden_size, 1e-5), FeedForward(Sizes())
        self.mode = mode
        for parameter in self.parameters():
            torch.nn.init.normal_(parameter, std=0.2)

    def forward(self, x):
        return x + self.mlp(self.norm(x))


def gradients(part, x, *, overwrites):
    """Of the input and all weights, and the code that a compiler made of forward and backward."""
    part, x = copy.deepcopy(part), x.clone().requires_grad_()
    part.mlp.overwritten = REMADE[part.mode] if overwrites else frozenset()
    recompute_blocks([part], Recipe(seq_len=1, recompute=part.mode, compile=True))
    torch._dynamo.reset()
    part.forward = torch.compile(part.forward, dynamic=False)

    def run():
        part(x).float().square().sum().backward()

    _, codes = run_and_get_code(run)
    return [x.grad, *(parameter.grad for parameter in part.parameters())], codes


@pytest.fixture(params=["full", "selective"])
def part(request):
    torch.manual_seed(0)
    return Part(request.param)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_the_plain_expression(part, dtype):
    part, x = part.to(dtype), torch.randn(2, 8, Sizes.hidden_size).to(dtype)
    plain, _ = gradients(part, x, overwrites=False)
    own, _ = gradients(part, x, overwrites=True)
    for expected, found in zip(plain, own, strict=True):
        torch.testing.assert_close(found, expected, rtol=2e-6 if dtype == torch.float32 else 2e-2, atol=1e-3)


def test_backward_makes_no_copy_of_what_it_writes_over(part):
    """Besides the gradient that arrives: with the gate kept only ``up`` is made, else both, and in no case a copy."""
    torch.manual_seed(1)
    (_, backward), (_, plain) = (
        gradients(part, torch.randn(2, 8, Sizes.hidden_size), overwrites=overwrites)[1] for overwrites in (True, False)
    )
    rows = 2 * 8
    made = {"full": 3, "selective": 2}[part.mode]
    widths = [f"empty_strided_cpu(({shape}, {WIDTH})" for shape in (rows, "2, 8")]
    assert sum(backward.count(width) for width in widths) == made
    assert sum(plain.count(width) for width in widths) == made + 3
    assert "shardwise.gated_gradients" in backward


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_both_operators_say_what_autograd_says(dtype):
    torch.manual_seed(2)
    gate, up = (torch.randn(3, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    arrived = torch.randn(3, 5, dtype=torch.float64)
    activation = torch.nn.functional.silu(gate) * up
    activation.backward(arrived)
    expected = [activation.detach(), gate.grad, up.grad]

    kept, other, gradient = (tensor.detach().to(dtype) for tensor in (gate, up, arrived))
    written = [tensor.clone() for tensor in (kept, other, gradient)]
    found = [gated_gradients(kept, other, gradient), gradient, other]
    gated_gradients_in_place(*written)
    for tensors in (found, [written[0], written[2], written[1]]):
        for wanted, tensor in zip(expected, tensors, strict=True):
            torch.testing.assert_close(
                tensor, wanted.to(dtype), rtol=2e-2 if dtype != torch.float32 else 1e-5, atol=1e-2
            )
