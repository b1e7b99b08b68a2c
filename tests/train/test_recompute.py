"""What blocks forget and make again changes no number, whatever else divides them."""

import pytest

from train.curves import assert_same
from train.models import MIXTRAL, make_job
from train.world_member import run

pytestmark = pytest.mark.runs


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
        assert result.losses == pytest.approx(alone["mixtral"].losses, rel=1e-5)


def test_compiled_blocks_of_divided_matrices_are_recomputed(worlds, alone):
    """torch 2.13 compiled the recomputation as well and then found a mesh among what backward needs."""
    job = make_job(layout={"tp": 2}, recompute="full", compile=True, num_steps=3)
    for result in worlds[2].run(run, job):
        assert result.losses == pytest.approx(alone["llama"].losses[:3], rel=1e-5)


SPLIT = {
    "zb-h1": ({"pp": 2, "schedule": "zb-h1"}, (2, 2)),
    "zb-h1 of two chunks": ({"pp": 2, "vpp": 2, "schedule": "zb-h1"}, (1, 1, 1, 1)),
    "zbv": ({"pp": 2, "schedule": "zbv"}, (1, 1, 1, 1)),
    "dualpipev": ({"pp": 2, "schedule": "dualpipev"}, (1, 1, 1, 1)),
}


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("name", SPLIT)
def test_blocks_are_recomputed_where_backward_is_split(worlds, alone, name, recompute):
    layout, chunk_layers = SPLIT[name]
    job = make_job(layout=layout, chunk_layers=chunk_layers, recompute=recompute)
    assert_same(worlds[2].run(run, job), alone["llama"])


@pytest.mark.parametrize("name", SPLIT)
def test_experts_are_recomputed_selectively_where_backward_is_split(worlds, alone, name):
    layout, chunk_layers = SPLIT[name]
    job = make_job(layout=layout, chunk_layers=chunk_layers, recompute="selective", model=MIXTRAL)
    assert_same(worlds[2].run(run, job), alone["mixtral"])


@pytest.mark.parametrize("axes", [{"dp_shard": 2}, {"tp": 2, "sequence_parallel": True}, {"cp": 2}], ids=str)
def test_divided_blocks_are_recomputed_selectively_where_backward_is_split(worlds, alone, axes):
    job = make_job(layout={"pp": 2, "schedule": "zb-h1", **axes}, chunk_layers=(2, 2), recompute="selective")
    assert_same(worlds[4].run(run, job), alone["llama"])


def test_experts_of_four_processes_are_recomputed_selectively_where_backward_is_split(worlds, alone):
    layout = {"dp_shard": 2, "ep": 2, "pp": 2, "schedule": "zb-h1"}
    job = make_job(model=MIXTRAL, layout=layout, chunk_layers=(2, 2), recompute="selective")
    assert_same(worlds[4].run(run, job), alone["mixtral"])


def test_some_offloaded_blocks_are_recomputed_where_backward_is_split(worlds, alone):
    given = {"chunk_layers": (2, 2), "recompute_layers": 1, "activation_offload": True}
    job = make_job(layout={"pp": 2, "schedule": "zb-h1"}, recompute="selective", **given)
    assert_same(worlds[2].run(run, job), alone["llama"])


def test_dropout_is_drawn_again_as_it_was_where_backward_is_split(worlds):
    """With other draws the gradients would not be those of the loss."""
    given = {"adapter": "lora", "lora_dropout_fraction": 0.5, "chunk_layers": (2, 2), "num_steps": 4}
    layout = {"pp": 2, "schedule": "zb-h1"}
    kept = worlds[2].run(run, make_job(layout=layout, **given))
    again = worlds[2].run(run, make_job(layout=layout, recompute="selective", **given))
    for mine, theirs in zip(again, kept, strict=True):
        assert mine.losses == pytest.approx(theirs.losses, rel=1e-6)
        assert mine.norms == pytest.approx(theirs.norms, rel=1e-5)
