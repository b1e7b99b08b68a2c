"""What a recipe says of a step changes no number, or as little as its precision does."""

from dataclasses import replace

import pytest
import torch

from shardwise.recipe import Recipe
from shardwise.train.recompute import recompute_blocks
from train.curves import RELATIVE, assert_same
from train.models import LLAMA, make_job
from train.world_member import run

pytestmark = pytest.mark.runs


@pytest.mark.parametrize(
    "recipe",
    [
        {"recompute": "full"},
        {"recompute": "full", "recompute_layers": 1},
        {"recompute": "selective"},
        {"offload": "parameters"},
        {"activation_offload": True},
        {"loss_chunks": 3},
        {"micro_batch_size": 1},
    ],
    ids=str,
)
def test_a_recipe_changes_no_number(worlds, alone, recipe):
    assert_same(worlds[2].run(run, make_job(layout={"dp_shard": 2}, **recipe)), alone["llama"])


@pytest.mark.parametrize(("layers", "recomputed"), [(None, [3, 3]), (0, [0, 0]), (2, [2, 0]), (4, [3, 1]), (9, [3, 3])])
def test_the_first_blocks_of_a_rank_are_recomputed_whatever_its_chunks(layers, recomputed):
    recipe = Recipe(seq_len=8, recompute="full", recompute_layers=layers)
    chunks = [[torch.nn.Linear(2, 2) for _ in range(3)] for _ in range(2)]
    for number, blocks in enumerate(chunks):
        recompute_blocks(blocks, recipe, num_before=3 * number)
    assert [sum("forward" in vars(block) for block in blocks) for blocks in chunks] == recomputed


def test_one_seed_trains_one_curve_and_another_seed_another(worlds, alone):
    """The twin of all tests above: what they compare can differ."""
    other = worlds[1].run(run, replace(make_job(model=LLAMA), seed=1))[0]
    assert other.losses != pytest.approx(alone["llama"].losses, rel=RELATIVE)


MIXED = {"bf16-mixed": 2e-3, "fp16-mixed": 5e-4}
"""Relative difference from fp32 after ten steps: bf16 keeps 8 bits of a number, fp16 keeps 11."""


@pytest.mark.parametrize("precision", MIXED)
@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"dp_replicate": 2, "zero_stage": 0}, {"tp": 2}], ids=str)
def test_mixed_precision_stays_near_fp32_whatever_the_layout(worlds, alone, precision, layout):
    for result in worlds[2].run(run, make_job(layout=layout, precision=precision)):
        assert result.losses == pytest.approx(alone["llama"].losses, rel=MIXED[precision])


@pytest.mark.parametrize("optimizer", ["sgd", "sgd-momentum", "adafactor"])
def test_other_optimizers_lower_the_loss(worlds, optimizer):
    losses = worlds[2].run(run, make_job(layout={"dp_shard": 2}, num_steps=10, optimizer=optimizer))[0].losses
    assert losses[-1] < losses[0]


def test_gradients_that_travel_in_bf16_and_add_up_in_fp32_are_those_reduced_in_fp32(worlds, curve):
    """The same summands in another order, through ten steps in bf16."""
    layout = {"dp_shard": 2}
    reduced = curve(2, layout=layout, precision="bf16-mixed")
    exchanging = {**layout, "exchange_gradients": True}
    exchanged = worlds[2].run(run, make_job(layout=exchanging, precision="bf16-mixed"))
    assert_same(exchanged, reduced, relative=1e-5)


def test_a_vocabulary_that_is_spread_trains_the_curve_of_one_process(worlds, alone):
    job = make_job(layout={"dp_shard": 2, "spread_vocabulary": True})
    assert_same(worlds[2].run(run, job), alone["llama"])
