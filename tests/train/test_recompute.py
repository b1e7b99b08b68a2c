"""What blocks forget and make again changes no number, whatever else divides them."""

import pytest

from train.curves import assert_same
from train.models import MIXTRAL, make_job
from train.world_member import run


@pytest.mark.parametrize(
    "layout",
    [
        {"dp_shard": 2, "ep": 2},
        {"dp_shard": 2, "ep": 2, "zero_stage": 1},
        {"tp": 2, "ep": 2, "sequence_parallel": True},
    ],
    ids=str,
)
def test_experts_that_are_units_of_their_own_are_recomputed_selectively(worlds, alone, layout):
    """FSDP's hooks inside a block gather weights in forward that backward finds gathered, and the reverse."""
    assert_same(worlds[2].run(run, make_job(model=MIXTRAL, layout=layout, recompute="selective")), alone["mixtral"])


@pytest.mark.parametrize(
    "layout", [{"dp_shard": 4, "ep": 2}, {"dp_shard": 2, "tp": 2, "ep": 2, "sequence_parallel": True}], ids=str
)
def test_so_they_are_in_four_processes(worlds, alone, layout):
    assert_same(worlds[4].run(run, make_job(model=MIXTRAL, layout=layout, recompute="selective")), alone["mixtral"])


def test_a_pipeline_of_experts_recomputes_selectively(worlds, alone):
    job = make_job(model=MIXTRAL, layout={"dp_shard": 2, "pp": 2, "ep": 2}, chunk_layers=(2, 2), recompute="selective")
    assert_same(worlds[4].run(run, job), alone["mixtral"])


def test_experts_whose_attention_is_compiled_are_recomputed_selectively(worlds, alone):
    job = make_job(model=MIXTRAL, layout={"dp_shard": 2, "ep": 2}, recompute="selective", compile=True, num_steps=4)
    for result in worlds[2].run(run, job):
        assert result.losses == pytest.approx(alone["mixtral"].losses[:4], rel=1e-5)


def test_compiled_blocks_of_divided_matrices_are_recomputed(worlds, alone):
    """torch 2.13 compiled the recomputation as well and then found a mesh among what backward needs."""
    job = make_job(layout={"tp": 2}, recompute="full", compile=True, num_steps=3)
    for result in worlds[2].run(run, job):
        assert result.losses == pytest.approx(alone["llama"].losses[:3], rel=1e-5)
