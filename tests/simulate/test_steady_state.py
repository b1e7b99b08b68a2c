"""Steps of many micro-batches from steps of few: the same as running them all."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.simulate.pipeline import run_pipeline
from shardwise.simulate.pipeline_times import PipelineTimes
from simulate.pipelines import ALL, cases, chunk, shape

REPEATING = [(name, vpp) for name, vpp in ALL if name not in ("gpipe", "looped-bfs")]
ENDS = {"even": 1.0, "slow last": 1.6}


def both(asked, times):
    return run_pipeline(asked, times), run_pipeline(asked, times, may_extrapolate=False)


@pytest.mark.parametrize("sends", ["free", "overlapped", "blocking"])
@pytest.mark.parametrize("last", ENDS)
@pytest.mark.parametrize(("name", "vpp"), REPEATING)
def test_the_step_is_the_same_and_really_was_not_run_in_full(name, vpp, last, sends):
    pp, m = 4, 320
    chunks = [chunk(1.0, 1.1, 0.9)] * (pp * vpp - 1) + [chunk(ENDS[last], 1.9, 1.4)]
    times = PipelineTimes(
        chunks=tuple(chunks),
        sends_s=() if sends == "free" else (0.05,) * (pp * vpp - 1),
        is_send_blocking=sends == "blocking",
        joined_ratio=0.9 if sends == "overlapped" else None,
    )
    short, full = both(shape(name, pp, m, vpp), times)
    assert short.is_extrapolated
    assert not full.is_extrapolated
    assert short.makespan_s == pytest.approx(full.makespan_s, rel=1e-12)
    for one, other in zip(short.ranks, full.ranks, strict=True):
        assert one.busy_s == pytest.approx(other.busy_s, rel=1e-12)
        assert (one.first_start_s, one.last_end_s) == pytest.approx((other.first_start_s, other.last_end_s), rel=1e-12)


@settings(max_examples=60)
@given(cases(), st.integers(20, 60))
def test_uneven_pipelines_are_extrapolated_exactly_or_run_in_full(case, rounds):
    asked, times = case
    asked = replace(asked, num_microbatches=rounds * asked.pp)
    short, full = both(asked, times)
    assert short.makespan_s == pytest.approx(full.makespan_s, rel=1e-12)
    assert [one.busy_s for one in short.ranks] == pytest.approx([one.busy_s for one in full.ranks], rel=1e-12)


@settings(max_examples=30)
@given(st.data())
def test_stages_of_nearly_the_same_length_are_no_trap(data):
    """Slack of a thousandth of a stage takes long to be used up: the shift must not be believed too early."""
    nearly = st.sampled_from([1.0, 1.001, 0.999, 1.0005])
    chunks = tuple(chunk(data.draw(nearly), data.draw(nearly), data.draw(nearly)) for _ in range(6))
    sends = (data.draw(st.sampled_from([0.0, 0.001, 0.3])),) * 5
    name = data.draw(st.sampled_from(["1f1b", "zb-h1", "zb-h2"]))
    short, full = both(shape(name, 6, 400), PipelineTimes(chunks=chunks, sends_s=sends))
    assert short.makespan_s == pytest.approx(full.makespan_s, rel=1e-12)


def test_a_last_round_that_is_longer_stays_last():
    """Megatron with rounds of 4 and a remainder of 7: the drain of 407 micro-batches is that of 27."""
    asked = shape("interleaved", 4, 407, 2, num_microbatches_per_round=8)
    short, full = both(asked, PipelineTimes(chunks=(chunk(1.0, 1.2, 0.8),) * 8, sends_s=(0.1,) * 7))
    assert short.is_extrapolated
    assert short.makespan_s == pytest.approx(full.makespan_s, rel=1e-12)


@pytest.mark.parametrize("name", ["gpipe", "looped-bfs"])
def test_schedules_without_a_steady_part_are_always_run_in_full(name):
    times = PipelineTimes(chunks=(chunk(),) * (4 if name == "gpipe" else 8))
    assert not run_pipeline(shape(name, 4, 200, 1 if name == "gpipe" else 2), times).is_extrapolated


def test_llama_3_405bs_depth_takes_the_time_that_the_closed_form_gives():
    """pp = 16, v = 8, m = 512: (512 + 15 / 8) * 3 = 1541.625."""
    times = PipelineTimes(chunks=(chunk(parts=8),) * 128)
    run = run_pipeline(shape("interleaved", 16, 512, 8), times)
    assert run.is_extrapolated
    assert run.makespan_s == pytest.approx(1541.625, rel=1e-12)
