"""Which numbers of micro-batches torch's own schedules accept: the answers torch 2.13 gave when asked."""

import pytest

from rules.samples import llama_8b, make_plan
from shardwise.layout import Layout
from shardwise.rules import find_errors

ASKED = [
    # schedule, pp, vpp, micro-batches, accepted
    ("1f1b", 4, 1, 2, False),
    ("1f1b", 4, 1, 4, True),
    ("1f1b", 4, 1, 7, True),
    ("gpipe", 4, 1, 2, True),
    ("interleaved", 4, 2, 3, True),
    ("interleaved", 4, 2, 9, False),
    ("interleaved", 4, 2, 10, True),
    ("interleaved", 4, 1, 8, False),
    ("zb-h1", 4, 2, 8, True),
    ("zb-h1", 4, 2, 9, False),
    ("zbv", 4, 1, 2, True),
    ("dualpipev", 4, 1, 7, False),
    ("dualpipev", 4, 1, 8, True),
]


@pytest.mark.parametrize(("schedule", "pp", "vpp", "num_microbatches", "accepted"), ASKED)
def test_torch_schedules_take_the_micro_batches_that_torch_takes(schedule, pp, vpp, num_microbatches, accepted):
    layout = Layout(pp=pp, vpp=vpp, schedule=schedule)
    plan = make_plan(llama_8b(), layout=layout, global_batch_size=num_microbatches, compile=False)
    assert (find_errors(plan) == ()) is accepted


@pytest.mark.parametrize(("num_microbatches", "accepted"), [(4, True), (8, True), (6, False), (2, False)])
def test_megatron_interleaves_whole_rounds_of_pp(num_microbatches, accepted):
    layout = Layout(pp=4, vpp=2, schedule="interleaved", zero_stage=1)
    plan = make_plan(engine="megatron", layout=layout, global_batch_size=num_microbatches)
    assert (find_errors(plan) == ()) is accepted


@pytest.mark.parametrize(("num_microbatches", "accepted"), [(5, True), (10, True), (9, True), (6, False), (4, False)])
def test_megatron_interleaves_in_rounds_that_it_is_told_of(num_microbatches, accepted):
    """``schedules.py`` raises for a last round of 1 to pp - 1 micro-batches and for a round larger than the step."""
    layout = Layout(pp=4, vpp=2, schedule="interleaved", zero_stage=1, num_microbatches_per_round=5)
    plan = make_plan(engine="megatron", layout=layout, global_batch_size=num_microbatches)
    assert (find_errors(plan) == ()) is accepted


@pytest.mark.parametrize(("engine", "vpp"), [("torchtitan", 2), ("megatron", 1)])
def test_only_an_interleaved_schedule_of_megatron_has_rounds_to_set(engine, vpp):
    schedule = "interleaved" if vpp > 1 else "1f1b"
    layout = Layout(pp=4, vpp=vpp, schedule=schedule, zero_stage=1, num_microbatches_per_round=5)
    plan = make_plan(engine=engine, layout=layout, global_batch_size=10, compile=False)
    assert "layout-microbatches-per-round" in [error.rule for error in find_errors(plan)]


def test_megatron_runs_1f1b_with_fewer_micro_batches_than_stages():
    """Measured: a third of vTrain's published Megatron-DeepSpeed runs have two micro-batches on four stages."""
    plan = make_plan(engine="megatron", layout=Layout(pp=4, zero_stage=1), global_batch_size=2)
    assert find_errors(plan) == ()
