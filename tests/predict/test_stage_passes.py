"""Data parallelism of whole stages: closed forms against the event engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.predict.pass_time import pass_time
from shardwise.predict.passes import PassCall, PassWork, Piece
from shardwise.predict.stage_passes import MOST_SIMULATED_BUCKETS, StagePass, exposed_calls


def buckets(*, compute_s, reduce_s, ratio, count):
    return Piece(
        works=(PassWork(name="backward of one bucket", category="backward", duration_s=compute_s),),
        reductions=(
            PassCall(
                name="all-reduce gradients",
                kind="all_reduce",
                axis="dp_replicate",
                duration_s=reduce_s,
                slowdown_ratio=ratio,
            ),
        ),
        count=count,
    )


def bucketed(*pieces):
    names = frozenset(("all-reduce gradients",))
    return StagePass(phase="backward", runs=pieces, rounds=1, is_throttled=False, prefetch_units=1, names=names)


@given(
    compute_s=st.sampled_from([0.0, 0.3, 1.0, 1.7]),
    reduce_s=st.sampled_from([0.1, 0.3, 1.0, 2.3]),
    ratio=st.sampled_from([1.0, 1.126, 1.5]),
    count=st.integers(MOST_SIMULATED_BUCKETS + 1, 90),
    last_s=st.sampled_from([0.0, 0.1, 1.0]),
    last_reduce_s=st.sampled_from([0.1, 5.0]),
)
def test_many_buckets_in_closed_form_equal_the_event_engine(compute_s, reduce_s, ratio, count, last_s, last_reduce_s):
    """The fast road: exact while one kind of reduction queues behind computation."""
    piece = buckets(compute_s=compute_s, reduce_s=reduce_s, ratio=ratio, count=count)
    last = buckets(compute_s=last_s, reduce_s=last_reduce_s, ratio=ratio, count=1)
    closed_s = sum(call.exposed_s for call in exposed_calls(bucketed(piece, last)))
    simulated = pass_time((piece, last), is_throttled=False, may_extrapolate=False)
    assert closed_s == pytest.approx(simulated.duration_s - simulated.line_s, rel=1e-9, abs=1e-9)


def test_all_but_the_last_bucket_hide():
    """40 buckets of 1 s under 40 pieces of 2 s, not slowed: the last one is left."""
    piece, last = (buckets(compute_s=2.0, reduce_s=1.0, ratio=1.0, count=count) for count in (39, 1))
    assert sum(call.exposed_s for call in exposed_calls(bucketed(piece, last))) == pytest.approx(1.0)


def test_an_embedding_too_large_for_a_bucket_is_waited_for():
    """39 buckets hide; the embedding's takes 7 s when nothing is left to compute."""
    piece = buckets(compute_s=2.0, reduce_s=1.0, ratio=1.0, count=39)
    last = buckets(compute_s=0.5, reduce_s=7.0, ratio=1.0, count=1)
    assert sum(call.exposed_s for call in exposed_calls(bucketed(piece, last))) == pytest.approx(7.5)
