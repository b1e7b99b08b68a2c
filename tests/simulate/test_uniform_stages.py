"""Uniform stages: makespan, bubble and peak in flight of every schedule that has a closed form."""

import pytest

from shardwise.schedules.kept_by_order import peak_in_flight
from shardwise.schedules.shape import ScheduleShape
from shardwise.simulate.pipeline import bubble_over_ideal, idle_fraction, run_pipeline
from shardwise.simulate.pipeline_times import ChunkTimes, PipelineTimes, even_chunks

SAMPLE = [(1, 1), (1, 64), (2, 3), (3, 3), (4, 16), (5, 64), (7, 11), (8, 8), (11, 13), (13, 52), (16, 16), (16, 64)]
ALL = [(pp, m) for pp in range(1, 17) for m in range(pp, 65)]
FORWARD, INPUT, WEIGHT = 3.0, 5.0, 2.0
STAGE = FORWARD + INPUT + WEIGHT


def run(name, pp, m, vpp=1):
    chunk = ChunkTimes(forward_s=FORWARD / vpp, input_backward_s=INPUT / vpp, weight_backward_s=WEIGHT / vpp)
    times = PipelineTimes(chunks=even_chunks(num_chunks=pp * vpp, chunk=chunk))
    return run_pipeline(ScheduleShape(name=name, pp=pp, vpp=vpp, num_microbatches=m), times)


def peaks(name, pp, m, vpp=1):
    shape = ScheduleShape(name=name, pp=pp, vpp=vpp, num_microbatches=m)
    return [peak.kept_micro_batches_ratio for peak in peak_in_flight(shape)]


def fault(pp, m):
    """The first closed form that these sizes break; empty when all hold."""
    for name in ("gpipe", "1f1b"):
        step = run(name, pp, m)
        if step.makespan_s != pytest.approx((m + pp - 1) * STAGE):
            return f"makespan of {name}"
        if bubble_over_ideal(step) != pytest.approx((pp - 1) / m) or idle_fraction(step) != pytest.approx(
            (pp - 1) / (m + pp - 1)
        ):
            return f"bubble of {name}"
    if peaks("gpipe", pp, m) != [m] * pp or peaks("1f1b", pp, m) != [min(m, pp - rank) for rank in range(pp)]:
        return "in flight"
    if run("zb-h1", pp, m).makespan_s != pytest.approx(m * STAGE + (pp - 1) * (FORWARD + INPUT - WEIGHT)):
        return "makespan of zb-h1"
    if peaks("zb-h1", pp, m) != [min(m, pp)] * pp:
        return "in flight of zb-h1"
    return _interleaved_fault(pp, m) if m % pp == 0 else ""


def _interleaved_fault(pp, m):
    step = run("interleaved", pp, m, vpp=2)
    if step.makespan_s != pytest.approx(m * STAGE + (pp - 1) * STAGE / 2):
        return "makespan of interleaved"
    if m >= 2 * pp and peaks("interleaved", pp, m, vpp=2)[0] != pp + (pp - 1) / 2:
        return "in flight of interleaved"
    return ""


def v_shaped_fault(pp, m):
    """Equal thirds of a stage's work: forward, input gradient and weight gradient; enough micro-batches to fill."""
    forms = {"zb-h2": (1, pp - 1, 2 * pp - 1), "zbv": (2, (pp - 1) / 2, pp), "dualpipev": (2, pp - 1, pp + 1 / 2)}
    for name, (vpp, idle, kept) in forms.items():
        third = ChunkTimes(forward_s=1 / vpp, input_backward_s=1 / vpp, weight_backward_s=1 / vpp)
        times = PipelineTimes(chunks=even_chunks(num_chunks=pp * vpp, chunk=third))
        shape = ScheduleShape(name=name, pp=pp, vpp=vpp, num_microbatches=m)
        if run_pipeline(shape, times).makespan_s != pytest.approx(3 * m + idle):
            return f"makespan of {name}"
        if max(peaks(name, pp, m, vpp=vpp)) != kept:
            return f"in flight of {name}"
    return ""


def breadth_first_fault(pp, m):
    """Idle as interleaved 1F1B is, for any number of micro-batches, with all of them in flight as in GPipe."""
    if run("looped-bfs", pp, m, vpp=2).makespan_s != pytest.approx(m * STAGE + (pp - 1) * STAGE / 2):
        return "makespan of looped-bfs"
    return "" if peaks("looped-bfs", pp, m, vpp=2) == [m] * pp else "in flight of looped-bfs"


@pytest.mark.parametrize(("pp", "m"), [(1, 2), (2, 4), (3, 7), (4, 16), (5, 64), (8, 16), (11, 23), (16, 32), (16, 64)])
def test_zero_bubble_and_breadth_first_keep_theirs(pp, m):
    assert v_shaped_fault(pp, m) == ""
    assert breadth_first_fault(pp, m) == ""


@pytest.mark.parametrize(("pp", "m"), SAMPLE)
def test_schedules_keep_their_closed_forms(pp, m):
    assert fault(pp, m) == ""


@pytest.mark.slow
def test_schedules_keep_their_closed_forms_for_all_sizes():
    assert [(pp, m, fault(pp, m)) for pp, m in ALL if fault(pp, m)] == []
    some = ALL[::9]
    assert [(pp, m) for pp, m in some if breadth_first_fault(pp, m)] == []
    assert [(pp, m) for pp, m in some if m >= 2 * pp and v_shaped_fault(pp, m)] == []


def test_uneven_stages_break_them():
    """The twin: a last stage of 1.3 is not in the closed form."""
    chunks = (ChunkTimes(forward_s=1.0),) * 3 + (ChunkTimes(forward_s=1.3),)
    step = run_pipeline(ScheduleShape(name="1f1b", pp=4, num_microbatches=8), PipelineTimes(chunks=chunks))
    assert step.makespan_s != pytest.approx((8 + 3) * 1.075)
