"""Every layout trains the model that one process trains: the same losses and gradient norms, step by step."""

import pytest

from train.curves import assert_same
from train.models import MIXTRAL, make_job
from train.representatives import representatives
from train.world_member import run

LLAMA_LAYOUTS = {
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}),
    "zero 1": (2, {"dp_shard": 2, "zero_stage": 1}),
    "zero 2": (2, {"dp_shard": 2, "zero_stage": 2}),
    "fsdp": (2, {"dp_shard": 2}),
    "fsdp without resharding": (2, {"dp_shard": 2, "reshard_after_forward": False}),
    "fsdp that reduces once": (2, {"dp_shard": 2, "defer_grad_reduce": True}),
    "fsdp that gathers two ahead": (2, {"dp_shard": 2, "prefetch_units": 2}),
    "fsdp resharded over two of four": (4, {"dp_shard": 4, "reshard_size": 2}),
    "hsdp": (4, {"dp_replicate": 2, "dp_shard": 2}),
    "tp": (2, {"tp": 2}),
    "tp, sequence parallel": (2, {"tp": 2, "sequence_parallel": True}),
    "cp": (2, {"cp": 2}),
    "tp 4": (4, {"tp": 4, "sequence_parallel": True}),
    "cp 4": (4, {"cp": 4}),
    "ddp x tp": (4, {"dp_replicate": 2, "zero_stage": 0, "tp": 2}),
    "fsdp x tp": (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True}),
    "zero 2 x tp": (4, {"dp_shard": 2, "zero_stage": 2, "tp": 2}),
    "fsdp x cp": (4, {"dp_shard": 2, "cp": 2}),
    "cp x tp": (4, {"cp": 2, "tp": 2, "sequence_parallel": True}),
}
PIPELINES = {
    "gpipe, uneven": (2, {"pp": 2, "schedule": "gpipe"}, (1, 3)),
    "1f1b": (2, {"pp": 2}, (2, 2)),
    "interleaved": (2, {"pp": 2, "vpp": 2, "schedule": "interleaved"}, (1, 1, 1, 1)),
    "zero bubble": (2, {"pp": 2, "schedule": "zb-h1"}, (2, 2)),
    "zbv": (2, {"pp": 2, "schedule": "zbv"}, (1, 1, 1, 1)),
    "dualpipev": (2, {"pp": 2, "schedule": "dualpipev"}, (1, 1, 1, 1)),
    "1f1b on four": (4, {"pp": 4}, (1, 1, 1, 1)),
    "fsdp x pp": (4, {"pp": 2, "dp_shard": 2}, (2, 2)),
    "pp x tp": (4, {"pp": 2, "tp": 2, "sequence_parallel": True}, (2, 2)),
    "pp x cp": (4, {"pp": 2, "cp": 2}, (1, 3)),
}
MIXTRAL_LAYOUTS = {
    "fsdp": (2, {"dp_shard": 2}, ()),
    "ep": (2, {"dp_shard": 2, "ep": 2}, ()),
    "ep x fsdp": (4, {"dp_shard": 4, "ep": 2}, ()),
    "ep x cp": (4, {"dp_shard": 2, "cp": 2, "ep": 4}, ()),
    "tp": (2, {"tp": 2}, ()),
    "tp, sequence parallel": (2, {"tp": 2, "sequence_parallel": True}, ()),
    "tp x fsdp, sequence parallel": (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True}, ()),
    "ep x tp": (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True, "ep": 2}, ()),
    "ep x pp": (4, {"dp_shard": 2, "ep": 2, "pp": 2}, (2, 2)),
}
KEPT = ("ddp", "zero 1", "zero 2", "fsdp", "fsdp that reduces once", "hsdp", "tp, sequence parallel", "cp")
KEPT_PIPELINES = ("1f1b", "interleaved", "zero bubble", "zbv", "fsdp x pp")
KEPT_MIXTRALS = ("fsdp", "ep", "ep x tp")


@pytest.mark.parametrize("name", representatives(LLAMA_LAYOUTS, KEPT))
def test_a_layout_trains_what_one_process_trains(worlds, alone, name):
    size, layout = LLAMA_LAYOUTS[name]
    assert_same(worlds[size].run(run, make_job(layout=layout)), alone["llama"])


@pytest.mark.parametrize("name", representatives(PIPELINES, KEPT_PIPELINES))
def test_a_pipeline_trains_what_one_process_trains(worlds, alone, name):
    size, layout, chunk_layers = PIPELINES[name]
    assert_same(worlds[size].run(run, make_job(layout=layout, chunk_layers=chunk_layers)), alone["llama"])


def test_gradients_add_up_over_micro_batches_between_the_first_and_the_last(worlds, alone):
    assert_same(worlds[2].run(run, make_job(layout={"dp_shard": 2}, micro_batch_size=1)), alone["llama"])


@pytest.mark.runs
def test_axes_of_every_kind_still_train_it_after_ten_steps(worlds, curve):
    """A difference too small to show in a few steps grows; of one sequence, micro-batches have a middle."""
    layout = {"pp": 2, "dp_shard": 2}
    results = worlds[4].run(run, make_job(layout=layout, chunk_layers=(2, 2), micro_batch_size=1, num_steps=10))
    assert_same(results, curve(1, num_steps=10))


@pytest.mark.parametrize("name", representatives(MIXTRAL_LAYOUTS, KEPT_MIXTRALS))
def test_a_layout_trains_the_experts_one_process_trains(worlds, alone, name):
    size, layout, chunk_layers = MIXTRAL_LAYOUTS[name]
    job = make_job(layout=layout, model=MIXTRAL, chunk_layers=chunk_layers)
    assert_same(worlds[size].run(run, job), alone["mixtral"])
