"""Spans of one pass: simulated as for its time, fitted to another, and summed up."""

import pytest

from shardwise.predict.pass_spans import PassSpans, simulated_pass
from shardwise.predict.stage_passes import plain_runs
from shardwise.predict.stage_work import BlockWork, StageWork
from shardwise.predict.timeline_split import split_rank
from shardwise.simulate.engine import Task
from shardwise.simulate.spans import Span


def span(stream, start_s, end_s, *, name="work", exposed_s=0.0):
    category = "forward" if stream == "compute" else "all_gather"
    return Span(stream=stream, name=name, category=category, start_s=start_s, end_s=end_s, exposed_s=exposed_s)


COMPUTES_WAITS_AND_HIDES = PassSpans(
    spans=(
        span("compute", 0.0, 3.0),
        span("tp", 3.0, 5.0, name="sum", exposed_s=2.0),
        span("compute", 5.0, 12.0),
        span("dp_shard", 6.0, 11.0, name="gather"),
        span("tp", 12.0, 13.0, name="sum", exposed_s=1.0),
    ),
    duration_s=13.0,
)


def times(spans):
    return [(one.stream, pytest.approx(one.start_s), pytest.approx(one.end_s)) for one in spans]


def test_in_a_longer_pass_waits_keep_their_length_and_computation_fills_the_rest():
    """Ten seconds of computation in twenty."""
    fitted = COMPUTES_WAITS_AND_HIDES.fitted(23.0)
    assert fitted.duration_s == 23.0
    assert times(fitted.spans) == [
        ("compute", 0.0, 6.0),
        ("tp", 6.0, 8.0),
        ("compute", 8.0, 22.0),
        ("dp_shard", 10.0, 20.0),
        ("tp", 22.0, 23.0),
    ]


def test_what_a_host_hides_runs_beside_the_computation_before():
    """Half of the waits are left: the other half of each collective lies under what was computed before it."""
    fitted = COMPUTES_WAITS_AND_HIDES.fitted(11.5, waits_ratio=0.5)
    assert times(one for one in fitted.spans if one.stream == "tp") == [("tp", 2.0, 4.0), ("tp", 10.5, 11.5)]
    assert split_rank(fitted.spans, step_s=11.5).exposed_communication_s == pytest.approx(1.5)


def test_a_summary_has_the_sums_of_its_pass():
    summary = COMPUTES_WAITS_AND_HIDES.summary()
    assert times(summary.spans) == [("compute", 0.0, 10.0), ("tp", 10.0, 13.0), ("dp_shard", 0.0, 5.0)]
    assert summary.exposed == {("sum", "tp"): 3.0, ("gather", "dp_shard"): 0.0}


def test_streams_that_wait_at_once_do_so_in_a_summary():
    both = PassSpans(
        spans=(
            span("compute", 0.0, 2.0),
            span("tp", 2.0, 5.0, name="sum", exposed_s=2.0),
            span("cp", 2.0, 7.0, name="ring", exposed_s=3.0),
        ),
        duration_s=7.0,
    )
    summary = both.summary()
    assert times(summary.spans) == [("compute", 0.0, 2.0), ("tp", 2.0, 5.0), ("cp", 2.0, 7.0)]
    assert split_rank(summary.spans, step_s=7.0) == split_rank(both.spans, step_s=7.0)


def test_a_block_without_collectives_inside_computes_and_then_waits():
    wait = Task(name="sum", stream="tp", duration_s=2.0, category="all_reduce")
    work = StageWork(blocks=(BlockWork(name="blocks[0]", count=3, forward_s=5.0, forward_waits=(wait,)),))

    class Context:
        units = ()

    runs = plain_runs(Context, work, "forward")
    drawn = simulated_pass(runs, work, "forward", is_throttled=True)
    assert times(drawn.spans) == [
        (stream, start_s, end_s)
        for first_s in (0.0, 7.0, 14.0)
        for stream, start_s, end_s in (("compute", first_s, first_s + 5.0), ("tp", first_s + 5.0, first_s + 7.0))
    ]
    assert drawn.exposed == {("sum", "tp"): 6.0}
