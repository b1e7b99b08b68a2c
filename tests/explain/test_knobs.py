"""The knobs that a profile names, turned in the plan that was running."""

from dataclasses import replace

import pytest

from shardwise.explain.knobs import turn_knobs
from shardwise.measure.profile_records import ProfileFinding, TraceProfile
from shardwise.measure.step_split import StepSplit
from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.rules import find_errors

EAGER_TENSOR_PARALLEL = {
    "model": "llama-3.1-8b",
    "cluster": "8xh100-sxm",
    "recipe": {"seq_len": 4096, "global_batch_size": 16, "compile": False},
    "layout": {"dp_shard": 2, "tp": 4, "sequence_parallel": True},
    "engine": "torchtitan",
}
MEASURED_STEP_S = 10.0
SPLIT = StepSplit(
    step_s=MEASURED_STEP_S,
    compute_s=6.0,
    exposed_communication_s=3.0,
    copies_s=0.0,
    host_s=1.0,
    idle_s=0.0,
    communication_s=4.0,
    overlapped_s=1.0,
)


def finding(knob: str, *, axis: str = "") -> ProfileFinding:
    return ProfileFinding(knob=knob, sentence=f"{knob} {axis}", advice="", gain_s=1.0, gain_fraction=0.1, axis=axis)


def profile_with(*findings: ProfileFinding) -> TraceProfile:
    return TraceProfile(
        ranks=(),
        world_size=8,
        split=SPLIT,
        collectives=(),
        units=(),
        kernels=(),
        straggler_rank=None,
        findings=findings,
        warnings=(),
    )


def turned(document, *findings):
    plan = read_plan(document)
    return turn_knobs(profile_with(*findings), plan, predict(plan)), plan


def test_a_gain_is_the_predicted_share_of_the_measured_step():
    (knobs,), plan = turned(EAGER_TENSOR_PARALLEL, finding("compile"))
    gain = next(gain for gain in knobs.gains if gain.edit == "compile=true")
    before_s = predict(plan).time.step_s
    after_s = predict(replace(plan, recipe=replace(plan.recipe, compile=True))).time.step_s
    assert gain.predicted_step_s == after_s
    assert gain.gain_fraction == pytest.approx(1 - after_s / before_s)
    assert gain.gain_s == pytest.approx(MEASURED_STEP_S * gain.gain_fraction)
    assert 0 < gain.gain_s < MEASURED_STEP_S


def test_knobs_of_a_collective_are_those_of_its_axis():
    (of_tp, of_dp), _ = turned(
        EAGER_TENSOR_PARALLEL, finding("overlap", axis="tp"), finding("overlap", axis="dp_shard")
    )
    said_of_tp = {gain.edit.split("=")[0] for gain in of_tp.gains} | {edit.split("=")[0] for edit in of_tp.useless}
    assert said_of_tp == {"async_tensor_parallel", "tp"}
    assert not {gain.edit.split("=")[0] for gain in of_dp.gains} & {"async_tensor_parallel", "tp"}


def test_a_knob_that_the_rules_forbid_is_not_turned():
    """DeepSpeed offers no asynchronous tensor parallelism, and no gathers ahead of FSDP2's units."""
    document = {
        **EAGER_TENSOR_PARALLEL,
        "recipe": {"seq_len": 4096, "global_batch_size": 16},
        "layout": {"dp_shard": 8, "zero_stage": 3},
        "engine": "deepspeed",
    }
    (knobs,), plan = turned(document, finding("prefetch"))
    ahead = replace(plan, layout=replace(plan.layout, prefetch_units=2))
    assert find_errors(ahead)
    tried = {*(gain.edit for gain in knobs.gains), *knobs.useless, *knobs.too_large}
    assert not {edit for edit in tried if edit.startswith("prefetch_units")}


def test_a_knob_that_does_not_fit_the_memory_gains_nothing():
    document = {
        "model": "llama-3.1-8b",
        "cluster": "8xh100-sxm",
        "recipe": {"seq_len": 16384, "micro_batch_size": 1, "global_batch_size": 32},
        "layout": {"dp_shard": 8},
    }
    (knobs,), _ = turned(document, finding("prefetch"))
    assert "micro_batch_size=4" in knobs.too_large
    assert "micro_batch_size=4" not in {gain.edit for gain in knobs.gains}


def test_what_is_no_matter_of_a_plan_has_no_knob():
    (straggler, idle), _ = turned(EAGER_TENSOR_PARALLEL, finding("straggler"), finding("idle"))
    assert straggler.gains == straggler.useless == idle.gains == idle.useless == ()
