"""Parts of a drawn step: they sum to it, and computation hides what runs beside it."""

import pytest

from shardwise.predict.timeline_split import split_rank
from shardwise.simulate.spans import Span


def span(stream, category, start_s, end_s):
    return Span(stream=f"stage 0/{stream}", name="", category=category, start_s=start_s, end_s=end_s)


def test_what_computation_covers_is_hidden():
    split = split_rank(
        [
            span("compute", "forward", 2.0, 5.0),
            span("compute", "backward", 7.0, 11.0),
            span("dp_shard", "all_gather", 0.0, 3.0),
            span("tp", "all_reduce", 5.5, 6.5),
            span("dp_shard", "reduce_scatter", 10.0, 13.0),
        ],
        step_s=17.0,
    )
    assert split.compute_s == pytest.approx(7.0)
    assert split.exposed == ((0.0, 2.0), (5.5, 6.5), (11.0, 13.0))
    assert split.exposed_communication_s == pytest.approx(5.0)
    assert split.idle_s == pytest.approx(5.0)


def test_one_collective_under_several_kernels_is_exposed_between_them():
    split = split_rank(
        [
            span("compute", "forward", 1.0, 2.0),
            span("compute", "forward", 3.0, 4.0),
            span("ep", "all_to_all", 0.0, 5.0),
        ],
        step_s=5.0,
    )
    assert split.exposed == ((0.0, 1.0), (2.0, 3.0), (4.0, 5.0))


def test_two_axes_at_once_are_exposed_once():
    split = split_rank(
        [span("tp", "all_reduce", 0.0, 3.0), span("dp_shard", "all_gather", 2.0, 5.0)],
        step_s=5.0,
    )
    assert split.exposed_communication_s == pytest.approx(5.0)


def test_copies_count_where_nothing_else_runs():
    split = split_rank(
        [
            span("compute", "forward", 0.0, 2.0),
            span("tp", "all_reduce", 2.0, 3.0),
            span("to the host", "offload", 1.0, 5.0),
        ],
        step_s=7.0,
    )
    assert (split.offload_s, split.idle_s) == (2.0, 2.0)
