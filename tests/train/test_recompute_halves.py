"""A block that forgets is recomputed once in either half of a backward pass that torch's pipelines split."""

import weakref

import pytest
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from shardwise.train.recompute import _Choice
from shardwise.train.recompute_halves import run_and_forget

KEEPS = {"full": None, "selective": lambda: _Choice(None)}


class Block(nn.Module):
    """Three products and what lies between them; every run is counted, and what is between is watched."""

    def __init__(self):
        super().__init__()
        self.products = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3))
        self.num_runs, self.between = 0, []

    def forward(self, hidden):
        self.num_runs += 1
        for product in self.products:
            hidden = product(hidden).sin()
            self.between.append(weakref.ref(hidden.untyped_storage()))
        return hidden


@pytest.fixture
def blocks():
    torch.manual_seed(0)
    return [Block() for _ in range(2)]


def run_halves(blocks, make_keeps):
    given = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    hidden = given
    for block in blocks:
        hidden = run_and_forget(block, hidden, make_keeps=make_keeps, draws=False)
    weights = [weight for block in blocks for weight in block.parameters()]
    loss = hidden.square().sum()
    _, groups = stage_backward_input([loss], None, [given], iter(weights))
    runs = [[block.num_runs for block in blocks]]
    stage_backward_weight(iter(weights), groups)
    runs.append([block.num_runs for block in blocks])
    return [given.grad, *(weight.grad for weight in weights)], runs


@pytest.mark.parametrize("mode", KEEPS)
def test_either_half_makes_a_block_again_once(blocks, mode):
    gradients, runs = run_halves(blocks, KEEPS[mode])
    assert runs == [[2, 2], [3, 3]]
    given = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    weights = [weight for block in blocks for weight in block.parameters()]
    plain = torch.autograd.grad(blocks[1](blocks[0](given)).square().sum(), [given, *weights])
    for mine, theirs in zip(gradients, plain, strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-6)


@pytest.mark.parametrize("mode", KEEPS)
def test_nothing_that_was_made_again_outlives_the_halves(blocks, mode):
    run_halves(blocks, KEEPS[mode])
    assert not [alive for block in blocks for alive in block.between if alive() is not None]


def test_a_whole_backward_makes_a_block_again_once(blocks):
    given = torch.randn(4, 8, requires_grad=True)
    hidden = run_and_forget(blocks[0], given, make_keeps=KEEPS["selective"], draws=False)
    hidden.sum().backward()
    assert blocks[0].num_runs == 2
    assert given.grad is not None


def test_a_block_that_is_only_asked_forgets_nothing(blocks):
    with torch.no_grad():
        hidden = run_and_forget(blocks[0], torch.randn(4, 8), make_keeps=None, draws=False)
    assert not hidden.requires_grad
    assert blocks[0].num_runs == 1


def test_a_block_that_saves_less_when_it_is_made_again_is_named(blocks):
    def forgetful(hidden):
        return hidden.sin().sin() if blocks[0].num_runs == 0 else hidden.sin()

    hidden = run_and_forget(forgetful, torch.randn(4, 8, requires_grad=True), make_keeps=None, draws=False)
    blocks[0].num_runs = 1
    with pytest.raises(AssertionError, match="a block saved 2 tensors, and 1 when it was recomputed"):
        hidden.sum().backward()
