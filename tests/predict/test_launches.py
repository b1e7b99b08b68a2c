"""The launching CPU beside the device, in whole seconds."""

import pytest

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.compute import DeviceAndHost, PhaseTimes
from shardwise.predict.launches import Clocks, ahead_block, launched, step_lines, through
from shardwise.predict.machine_rates import machine_rates
from shardwise.predict.pass_time import pass_time
from shardwise.predict.passes import Piece, pass_program
from shardwise.predict.stage_time import StageClock
from shardwise.predict.tasks import HOST
from shardwise.predict.time import predict_time
from shardwise.recipe import Recipe
from shardwise.simulate.engine import Task
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext


def piece(duration_s, issue_s, *, count=1, wait_s=0.0, gather_s=0.0):
    waits = (Task(name="sum", category="all_reduce", stream="tp", duration_s=wait_s, slowdown_ratio=1.0),)
    gathers = (Task(name="gather", category="all_gather", stream="dp_shard", duration_s=gather_s, slowdown_ratio=1.0),)
    return Piece(
        works=(Task(stream="compute", name="block", category="forward", duration_s=duration_s),),
        waits=waits if wait_s else (),
        gathers=gathers if gather_s else (),
        count=count,
        issue_s=issue_s,
    )


def test_a_slower_host_sets_the_pace():
    """Four blocks of 2 s launched in 3 s each: the last launch ends at 12 s, and its block with it."""
    assert pass_time([piece(2.0, 3.0, count=4)], is_throttled=True).duration_s == 12.0


def test_a_host_that_is_ahead_has_time_for_what_launches_slowly():
    """A head of 10 s launched in 1 s, then four blocks of 2 s launched in 3 s each: 18 s of computation, not 22."""
    found = pass_time([piece(10.0, 1.0), piece(2.0, 3.0, count=4)], is_throttled=True)
    assert found.duration_s == 18.0
    assert found.exposed == ()


def test_the_host_catches_up_with_long_runs():
    """The same with twenty blocks: launches end at 61 s."""
    found = pass_time([piece(10.0, 1.0), piece(2.0, 3.0, count=20)], is_throttled=True)
    assert found.duration_s == pytest.approx(61.0)


def test_gathers_hide_behind_launches():
    """Blocks of 1 s and gathers of 2 s, launched in 3 s each."""
    found = pass_time([piece(1.0, 3.0, count=4, gather_s=2.0)], is_throttled=True)
    assert found.duration_s == 12.0
    assert sum(call.exposed_s for call in found.exposed) == pytest.approx(0.0)


def test_no_launch_is_listed_where_the_host_is_always_ahead():
    program = pass_program([piece(3.0, 2.0, count=4)], is_throttled=True)
    assert all(task.issued_by is None for task in program.tasks)
    program = pass_program([piece(2.0, 3.0, count=4)], is_throttled=True)
    assert {task.issued_by for task in program.tasks if task.stream == "compute"} == {HOST}


def test_the_closed_line_is_that_of_the_engine():
    for pieces in (
        [piece(2.0, 3.0, count=5, wait_s=0.5)],
        [piece(4.0, 1.0), piece(1.0, 2.0, count=7), piece(9.0, 1.0)],
    ):
        engine_s = pass_time(pieces, is_throttled=True, may_extrapolate=False).duration_s
        assert through(pieces).device_s == pytest.approx(engine_s)


def test_a_host_is_no_further_ahead_than_its_queue():
    assert Clocks(device_s=10.0, host_s=2.0).behind(3.0) == Clocks(device_s=10.0, host_s=7.0)


@pytest.mark.parametrize(("most_ahead_s", "backward_s"), [(100.0, 4.0), (2.0, 4.0), (1.0, 5.0), (0.0, 6.0)])
def test_the_host_is_ahead_of_the_next_pass_as_far_as_its_queue_allows(most_ahead_s, backward_s):
    """Forward of 5 s launched in 1; backward of 4 s launched in 6 s, of which up to 4 have passed when it begins."""
    forward, backward = [piece(5.0, 1.0)], [piece(4.0, 6.0)]
    lines = step_lines(forward, backward, num_microbatches=1, most_ahead_s=most_ahead_s, with_waits=True)
    assert (lines.forward_s, lines.backward_s) == (5.0, backward_s)


def test_launches_hide_what_blocks_wait_for():
    """Blocks of 2 s that wait 1 s are launched in 3 s: nothing is exposed."""
    compute = PhaseTimes(forward_s=12.0, backward_s=12.0)
    runs = [piece(2.0, 3.0, count=4, wait_s=1.0)]
    found = launched(compute, runs, runs, copies=PhaseTimes(), num_microbatches=1, most_ahead_s=0.0)
    assert (found.forward_fraction, found.backward_fraction) == (0.0, 0.0)
    assert (found.compute.forward_s, found.compute.backward_s) == (12.0, 12.0)


def test_a_compiled_run_of_ours_takes_its_measured_time():
    """Llama-3.1-8B on four H100, selective recomputation, compiled (``2026-11-27-h100-memory.jsonl``): 1.062 s.

    A plain FSDP2 loop that asks for FlashAttention-2 (``benchmarks/gpu/decoder.py``).
    """
    plan = Plan(
        model=read_model("llama-3.1-8b"),
        cluster=read_cluster({"gpu": "h100-sxm", "gpus_per_node": 4, "num_nodes": 1}),
        recipe=Recipe(seq_len=8192, recompute="selective", compile=True, attention_kernel="fa2"),
        layout=Layout(dp_shard=4),
        engine="fsdp2",
    )
    assert predict_time(plan)[0].step_s == pytest.approx(1.062, rel=0.01)


def test_a_search_counts_the_whole_work_of_both_sides():
    """Forward 2 s launched in 5, backward 6 s launched in 1: 8 s, not 11; a wait of 1 s is not hidden."""
    once = PhaseTimes(
        forward_s=5.0, backward_s=6.0, forward_work=DeviceAndHost(2.0, 5.0), backward_work=DeviceAndHost(6.0, 1.0)
    )
    found = ahead_block(once, selective=DeviceAndHost(1.0, 4.0), full=DeviceAndHost(2.0, 5.0), exposed_s=1.0)
    assert (found.forward_s, found.backward_s) == (5.0, 3.0)
    assert (found.selective_s, found.full_s, found.exposed_fraction) == (2.0, 3.0, 1.0)


def waiting_plan(layout, *, waits, engine="megatron", **recipe):
    """A step of Llama-3.1-8B on eight A100."""
    settings = {"seq_len": 2048, "global_batch_size": 8, "compile": False} | recipe
    return Plan(
        model=read_model("llama-3.1-8b"),
        cluster=read_cluster({"gpu": "a100-sxm-80", "gpus_per_node": 8, "num_nodes": 1}),
        recipe=Recipe(blocking_launches=waits, **settings),
        layout=layout,
        engine=engine,
    )


def test_a_host_that_waits_for_every_kernel_takes_turns_with_the_device():
    """Device and host of a block add up where the longer of both counts otherwise."""
    for layout in (Layout(tp=8, zero_stage=0), Layout(zero_stage=0)):
        free, waiting = (waiting_plan(layout, waits=asked) for asked in (False, True))
        (stage,) = pipeline_stages(model=free.model, layout=layout)
        context = StageContext(plan=free, stage=stage)
        book = StageClock(free).work_book(context)
        (once, *_) = book.times
        turns = StageClock(waiting).work_book(StageContext(plan=waiting, stage=stage)).times[0]
        ratio = machine_rates(waiting, num_gpus=layout.world_size).kernels.slowest_ratio
        for free_work, work in ((once.forward_work, turns.forward_work), (once.backward_work, turns.backward_work)):
            assert work.device_s == pytest.approx(free_work.device_s + ratio * free_work.host_s)
            assert work.host_s == 0.0


@pytest.mark.parametrize(
    ("engine", "layout"),
    [
        ("megatron", Layout(dp_shard=2, tp=4, zero_stage=1, sequence_parallel=True)),
        ("megatron", Layout(dp_shard=2, cp=4, zero_stage=1)),
        ("fsdp2", Layout(dp_shard=8)),
        ("deepspeed", Layout(dp_shard=2, pp=4, zero_stage=1)),
    ],
)
def test_nothing_runs_beside_anything_else_under_a_host_that_waits(engine, layout):
    """Exposed communication is all of it."""
    plan = waiting_plan(layout, waits=True, engine=engine, attention="flash")
    for stage in pipeline_stages(model=plan.model, layout=layout):
        for time in StageClock(plan).stage_time(stage).collectives:
            assert time.exposed_s == pytest.approx(time.total_s), time.collective.name


def test_launches_that_wait_matter_less_the_larger_a_micro_batch_is():
    """The same batch in micro-batches of 1, 2 and 4: as many kernels each, so the loss halves every time."""
    layout = Layout(tp=8, zero_stage=0)
    loss_s = []
    for size in (1, 2, 4):
        free, waiting = (
            predict_time(waiting_plan(layout, waits=asked, engine="deepspeed", micro_batch_size=size, seq_len=32768))[0]
            for asked in (False, True)
        )
        loss_s.append(waiting.step_s - free.step_s)
    assert loss_s[0] == pytest.approx(2 * loss_s[1], rel=0.03)
    assert loss_s[1] == pytest.approx(2 * loss_s[2], rel=0.03)
