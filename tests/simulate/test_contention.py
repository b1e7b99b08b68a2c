"""Streams that slow each other down, by hand and against the sweep without a clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import SimulationError
from shardwise.simulate.contention import Contention, run_contended
from shardwise.simulate.engine import Task
from simulate.programs import STREAMS, programs


def task(stream, duration_s, *depends_on):
    return Task(name=stream, stream=stream, duration_s=duration_s, depends_on=depends_on)


def slows(stream, beside, ratio):
    return Contention(slowed=(stream,), while_busy=(beside,), slowdown_ratio=ratio)


def test_compute_slows_down_while_communication_runs_and_only_then():
    """10 s of compute beside 4 s of communication, 1.25 times slower: 4 s do 3.2 s of it, 6.8 s remain."""
    run = run_contended([task("compute", 10.0), task("comm", 4.0)], [slows("compute", "comm", 1.25)])
    assert run.ends_s == pytest.approx((10.8, 4.0), rel=1e-12)


def test_both_slow_down_when_both_are_told_to():
    """4 s of communication take 6 s at 1.5; meanwhile compute does 6 / 1.25 = 4.8 of its 10 s."""
    both = [slows("compute", "comm", 1.25), slows("comm", "compute", 1.5)]
    run = run_contended([task("compute", 10.0), task("comm", 4.0)], both)
    assert run.ends_s == pytest.approx((11.2, 6.0), rel=1e-12)


def test_communication_that_starts_and_ends_in_the_middle_of_a_kernel():
    program = [task("compute", 10.0), task("other", 3.0), task("comm", 2.0, 1)]
    run = run_contended(program, [slows("compute", "comm", 2.0)])
    assert run.ends_s == (11.0, 3.0, 5.0)


def test_the_largest_of_several_slowdowns_counts():
    program = [task("compute", 8.0), task("a", 4.0), task("b", 4.0)]
    run = run_contended(program, [slows("compute", "a", 2.0), slows("compute", "b", 4.0)])
    assert run.ends_s[0] == 11.0


def test_communication_back_to_back_slows_without_a_gap():
    program = [task("compute", 4.0), task("comm", 2.0), task("comm", 2.0)]
    assert run_contended(program, [slows("compute", "comm", 2.0)]).ends_s[0] == 6.0


def test_a_slowdown_below_one_is_refused():
    with pytest.raises(SimulationError) as caught:
        run_contended([task("compute", 1.0)], [slows("compute", "comm", 0.9)])
    assert caught.value.code == "simulation-slowdown"


CONTENTIONS = st.lists(
    st.builds(slows, st.sampled_from(STREAMS), st.sampled_from(STREAMS), st.sampled_from([1.0, 1.126, 1.5, 2.0])),
    max_size=4,
)


@given(programs(), CONTENTIONS)
def test_no_task_runs_faster_than_alone_or_slower_than_the_worst_slowdown(program, contentions):
    run = run_contended(program, contentions)
    worst = max((contention.slowdown_ratio for contention in contentions), default=1.0)
    for this, start, end in zip(program, run.starts_s, run.ends_s, strict=True):
        assert this.duration_s - 1e-9 <= end - start <= this.duration_s * worst + 1e-9


def stepped_ends_s(program, contentions, step_s):
    """Brute force: advance every running task by small steps."""
    left = [this.duration_s for this in program]
    ends = [None] * len(program)
    now = 0.0
    for _ in range(200_000):
        progressed = True
        while progressed:
            progressed = False
            for position, this in enumerate(program):
                ready = ends[position] is None and all(ends[other] is not None for other in this.depends_on)
                first = all(
                    ends[other] is not None for other in range(position) if program[other].stream == this.stream
                )
                if ready and first and left[position] <= 1e-9:
                    ends[position], progressed = now, True
        running = {
            this.stream: position
            for position, this in reversed(list(enumerate(program)))
            if ends[position] is None
            and all(ends[other] is not None for other in this.depends_on)
            and all(ends[other] is not None for other in range(position) if program[other].stream == this.stream)
        }
        if not running:
            return ends
        for stream, position in running.items():
            ratios = [
                c.slowdown_ratio
                for c in contentions
                if stream in c.slowed and any(other in running and other != stream for other in c.while_busy)
            ]
            left[position] -= step_s / max(ratios, default=1.0)
        now += step_s
    raise AssertionError("never ended")


def test_small_steps_of_time_give_the_same_ends():
    program = [
        task("compute", 3.0),
        task("comm", 1.0),
        task("compute", 2.0, 1),
        task("comm", 2.0, 0),
        task("copy", 1.5, 1),
        task("compute", 1.0, 3, 4),
    ]
    contentions = [slows("compute", "comm", 2.0), slows("comm", "compute", 1.5), slows("comm", "copy", 2.0)]
    run = run_contended(program, contentions)
    assert run.ends_s == pytest.approx(stepped_ends_s(program, contentions, 0.001), abs=0.01)
