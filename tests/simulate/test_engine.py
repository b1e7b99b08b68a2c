"""Tasks on streams: hand-made programs, brute force, and properties."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import SimulationError
from shardwise.simulate.contention import run_contended
from shardwise.simulate.engine import Task
from simulate.programs import STREAMS, programs


def task(stream, duration_s, *depends_on, **rest):
    return Task(name=stream, stream=stream, duration_s=duration_s, depends_on=depends_on, **rest)


def run_program(program):
    """Run a program whose streams do not disturb each other."""
    return run_contended(program, ())


def busy_s(program, stream):
    """The time that a stream runs tasks or launches."""
    return sum(one.duration_s for one in program if one.stream == stream) + sum(
        one.issue_s for one in program if one.issued_by == stream
    )


def test_a_stream_runs_its_tasks_one_after_the_other_as_listed():
    assert run_program([task("a", 2.0), task("a", 3.0), task("b", 4.0)]).ends_s == (2.0, 5.0, 4.0)


def test_a_task_waits_for_its_stream_and_for_all_it_depends_on():
    run = run_program([task("a", 2.0), task("b", 5.0), task("a", 3.0, 1), task("c", 1.0, 0, 2)])
    assert run.starts_s == (0.0, 0.0, 5.0, 8.0)
    assert run.makespan_s == 9.0


def test_kernels_shorter_than_their_launch_run_at_the_pace_of_the_cpu():
    """Launch-bound: 3 launches of 10 us before kernels of 2 us; the last kernel ends 2 us after the third launch."""
    run = run_program([task("gpu", 2.0, issued_by="cpu", issue_s=10.0)] * 3)
    assert run.starts_s == (10.0, 20.0, 30.0)
    assert run.makespan_s == 32.0


def test_a_cpu_that_waits_for_a_kernel_launches_nothing_meanwhile():
    program = [
        task("gpu", 8.0, issued_by="cpu", issue_s=1.0),
        task("cpu", 0.0, 0),
        task("gpu", 2.0, issued_by="cpu", issue_s=1.0),
    ]
    assert run_program(program).starts_s == (1.0, 9.0, 10.0)


def test_spans_carry_what_a_timeline_draws():
    program = [Task(name="send", stream="stage 0/pp", duration_s=2.0, category="send_recv", micro_batch=3, chunk=1)]
    (span,) = run_program(program).spans
    assert (span.stream, span.name, span.category, span.start_s, span.end_s, span.micro_batch, span.chunk) == (
        "stage 0/pp",
        "send",
        "send_recv",
        0.0,
        2.0,
        3,
        1,
    )
    assert span.duration_s == 2.0


def test_an_empty_program_takes_no_time():
    assert run_program([]).makespan_s == 0.0


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ([task("a", 1.0, 0)], "simulation-order"),
        ([task("a", 1.0, 1), task("b", 1.0)], "simulation-order"),
        ([task("a", 1.0), task("b", 1.0, -1)], "simulation-order"),
        ([task("a", -1.0)], "simulation-duration"),
        ([task("a", float("nan"))], "simulation-duration"),
        ([task("a", float("inf"))], "simulation-duration"),
        ([task("a", 1.0, issued_by="cpu", issue_s=-1.0)], "simulation-duration"),
    ],
)
def test_a_program_that_cannot_run_is_refused(program, code):
    with pytest.raises(SimulationError) as caught:
        run_program(program)
    assert caught.value.code == code


def brute_force_start_s(program, run, position):
    """The earliest start that breaks nothing, from first principles and the other tasks' times."""
    this = program[position]
    bounds = [0.0, *(run.ends_s[earlier] for earlier in this.depends_on)]
    bounds += [run.ends_s[other] for other in range(position) if program[other].stream == this.stream]
    bounds += [run.issued_s[other] for other in range(position) if program[other].issued_by == this.stream]
    if this.issued_by is not None:
        bounds.append(run.issued_s[position])
    return max(bounds)


@given(programs())
def test_every_task_starts_as_early_as_its_bounds_allow(program):
    run = run_program(program)
    for position, this in enumerate(program):
        assert run.starts_s[position] == brute_force_start_s(program, run, position)
        assert run.ends_s[position] == run.starts_s[position] + this.duration_s


@given(programs())
def test_the_makespan_lies_between_the_busiest_stream_and_everything_in_a_row(program):
    run = run_program(program)
    everything = sum(this.duration_s + this.issue_s for this in program)
    busiest = max(busy_s(program, stream) for stream in (*STREAMS, "cpu"))
    assert busiest <= run.makespan_s <= everything


@given(programs(), st.data())
def test_a_longer_task_never_makes_anything_end_earlier(program, data):
    if not program:
        return
    chosen = data.draw(st.integers(0, len(program) - 1))
    longer = [
        task if position != chosen else replace(task, duration_s=task.duration_s + 1)
        for position, task in enumerate(program)
    ]
    before, after = run_program(program), run_program(longer)
    assert all(late >= early for early, late in zip(before.ends_s, after.ends_s, strict=True))


@given(programs())
def test_the_same_program_always_gives_the_same_run(program):
    assert run_program(program) == run_program(list(program))
