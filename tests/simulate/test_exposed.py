"""Exposed communication and how it is shared out."""

from hypothesis import given

from shardwise.simulate.contention import Contention
from shardwise.simulate.engine import Task, run_program
from shardwise.simulate.exposed import attribute_exposed, exposed_s
from simulate.programs import programs


def task(name, stream, duration_s, *depends_on):
    return Task(name=name, stream=stream, duration_s=duration_s, depends_on=depends_on)


PREFETCHED = (
    task("gather 0", "comm", 2.0),
    task("forward 0", "compute", 5.0, 0),
    task("gather 1", "comm", 2.0),
    task("forward 1", "compute", 5.0, 2),
    task("gather 2", "comm", 9.0),
    task("forward 2", "compute", 5.0, 4),
)
"""The first gather is exposed, the second hides, the third is 13 - 12 = 1 s too long."""


def is_communication(task):
    return task.stream == "comm"


def unit(task):
    return task.name if is_communication(task) else None


def test_exposed_communication_is_what_the_makespan_loses_when_it_is_free():
    assert run_program(PREFETCHED).makespan_s == 18.0
    assert exposed_s(PREFETCHED, is_communication) == 3.0


def test_shares_say_which_unit_is_exposed_and_sum_to_the_whole():
    shares = attribute_exposed(PREFETCHED, unit)
    assert [(share.group, share.total_s, share.share_s) for share in shares] == [
        ("gather 0", 2.0, 2.0),
        ("gather 1", 2.0, 1.0),
        ("gather 2", 9.0, 0.0),
    ]
    assert [share.alone_s for share in shares] == [2.0, 1.0, 1.0]
    assert [share.hidden_s for share in shares] == [0.0, 1.0, 9.0]


def test_two_collectives_that_hide_behind_each_other_expose_nothing_alone():
    program = (task("a", "comm", 4.0), task("b", "other", 4.0), task("forward", "compute", 1.0, 0, 1))
    shares = attribute_exposed(program, lambda task: task.name if task.stream != "compute" else None)
    assert [(share.alone_s, share.share_s) for share in shares] == [(0.0, 0.0), (0.0, 4.0)]


def test_the_slowdown_that_hidden_communication_causes_is_exposed_too():
    program = (task("gather", "comm", 4.0), task("forward", "compute", 10.0))
    slow = Contention(slowed=("compute",), while_busy=("comm",), slowdown_ratio=2.0)
    assert exposed_s(program, is_communication, contentions=[slow]) == 2.0


@given(programs())
def test_shares_always_sum_to_what_is_exposed_together(program):
    def group(task):
        return task.stream if task.stream != "compute" else None

    shares = attribute_exposed(program, group)
    together = exposed_s(program, lambda task: group(task) is not None)
    assert sum(share.share_s for share in shares) == together
    assert all(0 <= share.alone_s <= together and share.share_s >= 0 for share in shares)
