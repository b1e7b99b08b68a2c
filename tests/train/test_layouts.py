"""Every layout trains the model that one process trains: the same losses and gradient norms over ten steps."""

import pytest

from train.models import LLAMA, MIXTRAL, make_job
from train.world_member import run

RELATIVE = 1e-5
"""fp32: sums in another order."""

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
    "ep x tp": (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True, "ep": 2}, ()),
    "ep x pp": (4, {"dp_shard": 2, "ep": 2, "pp": 2}, (2, 2)),
}


def assert_same(results, expected, *, relative=RELATIVE):
    for result in results:
        assert result.losses == pytest.approx(expected.losses, rel=relative)
        assert result.norms == pytest.approx(expected.norms, rel=10 * relative)


@pytest.mark.parametrize("name", LLAMA_LAYOUTS)
def test_a_layout_trains_what_one_process_trains(worlds, alone, name):
    size, layout = LLAMA_LAYOUTS[name]
    assert_same(worlds[size].run(run, make_job(layout=layout)), alone["llama"])


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_trains_what_one_process_trains(worlds, alone, name):
    size, layout, chunk_layers = PIPELINES[name]
    assert_same(worlds[size].run(run, make_job(layout=layout, chunk_layers=chunk_layers)), alone["llama"])


@pytest.mark.parametrize("name", MIXTRAL_LAYOUTS)
def test_a_layout_trains_the_experts_one_process_trains(worlds, alone, name):
    size, layout, chunk_layers = MIXTRAL_LAYOUTS[name]
    job = make_job(layout=layout, model=MIXTRAL, chunk_layers=chunk_layers)
    assert_same(worlds[size].run(run, job), alone["mixtral"])


@pytest.mark.parametrize(
    "recipe",
    [
        {"recompute": "full"},
        {"recompute": "full", "recompute_layers": 1},
        {"recompute": "selective"},
        {"offload": "parameters"},
        {"activation_offload": True},
        {"loss_chunks": 3},
        {"micro_batch_size": 2},
    ],
    ids=str,
)
def test_a_recipe_changes_no_number(worlds, alone, recipe):
    assert_same(worlds[2].run(run, make_job(layout={"dp_shard": 2}, **recipe)), alone["llama"])


def test_one_seed_trains_one_curve_and_another_seed_another(worlds, alone):
    """The twin of all tests above: what they compare can differ."""
    from dataclasses import replace

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
    losses = worlds[2].run(run, make_job(layout={"dp_shard": 2}, optimizer=optimizer))[0].losses
    assert losses[-1] < losses[0]


def test_gradients_that_travel_in_bf16_and_add_up_in_fp32_are_those_reduced_in_fp32(worlds):
    """The same summands in another order, through ten steps in bf16."""
    layout = {"dp_shard": 2}
    reduced = worlds[2].run(run, make_job(layout=layout, precision="bf16-mixed"))
    exchanging = {**layout, "exchange_gradients": True}
    exchanged = worlds[2].run(run, make_job(layout=exchanging, precision="bf16-mixed"))
    assert_same(exchanged, reduced[0], relative=1e-5)


def test_a_vocabulary_that_is_spread_trains_the_curve_of_one_process(worlds, alone):
    job = make_job(layout={"dp_shard": 2, "spread_vocabulary": True})
    assert_same(worlds[2].run(run, job), alone["llama"])
