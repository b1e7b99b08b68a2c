"""The chain of tasks that the makespan is made of."""

from hypothesis import given
from hypothesis import strategies as st

from shardwise.simulate.contention import Contention, run_contended
from shardwise.simulate.critical_path import critical_path
from shardwise.simulate.engine import Task, run_program
from simulate.programs import programs


def task(stream, duration_s, *depends_on, **rest):
    return Task(name=stream, stream=stream, duration_s=duration_s, depends_on=depends_on, **rest)


def test_the_path_goes_through_whatever_each_task_waited_for_last():
    program = [task("comm", 2.0), task("compute", 5.0, 0), task("comm", 1.0), task("compute", 5.0, 2)]
    path = critical_path(run_program(program))
    assert [(step.position, step.reason) for step in path] == [(0, "beginning"), (1, "dependency"), (3, "stream")]


def test_a_launch_bound_step_is_made_of_launches():
    path = critical_path(run_program([task("gpu", 2.0, issued_by="cpu", issue_s=10.0)] * 3))
    assert [(step.position, step.reason, step.launching_s) for step in path] == [(2, "launch", 30.0)]


def test_nothing_has_no_path():
    assert critical_path(run_program([])) == ()


@given(programs())
def test_durations_and_launches_of_the_path_sum_to_the_makespan(program):
    run = run_program(program)
    path = critical_path(run)
    assert sum(program[step.position].duration_s + step.launching_s for step in path) == run.makespan_s


@given(programs(), st.sampled_from([1.126, 1.5]))
def test_under_contention_the_times_of_the_path_still_sum_to_the_makespan(program, ratio):
    slow = Contention(slowed=("compute",), while_busy=("all_gather", "pp"), slowdown_ratio=ratio)
    run = run_contended(program, [slow])
    ran = sum(run.ends_s[step.position] - run.starts_s[step.position] + step.launching_s for step in critical_path(run))
    assert abs(ran - run.makespan_s) < 1e-9
