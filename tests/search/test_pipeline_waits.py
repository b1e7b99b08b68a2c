"""Closed forms of filling a pipeline and of its messages agree with the simulated schedules, pass by pass."""

import numpy as np
import pytest

from shardwise.schedules.make import settled
from shardwise.schedules.shape import ScheduleShape
from shardwise.schedules.table import SCHEDULES
from shardwise.search.candidates import Candidates, constant
from shardwise.search.pipeline_waits import StagePasses, hop_s, messages_s
from shardwise.simulate.pipeline import run_pipeline
from shardwise.simulate.pipeline_times import ChunkTimes, PipelineTimes

PASSES = [(1.0, 1.0, 1.0), (1.0, 2.0, 1.0), (2.0, 1.0, 1.0), (1.0, 1.0, 2.0), (1.0, 3.0, 1.0)]
"""Forward, input gradient with recomputation, weight gradient."""
TOLERANCES = {0.05: 0.02, 0.25: 0.08, 0.5: 0.11, 1.0: 0.14, 2.0: 0.18, 4.0: 0.18}
"""Of the whole step, by the seconds of a message over those of the mean pass of a chunk."""


def simulated_s(schedule, pp, vpp, num_microbatches, passes, message_s):
    shape = settled(ScheduleShape(name=schedule, pp=pp, vpp=vpp, num_microbatches=num_microbatches))
    each = 2 if schedule in ("zbv", "dualpipev") else vpp
    forward, input_backward, weight_backward = passes
    chunk = ChunkTimes(
        forward_s=forward / each, input_backward_s=input_backward / each, weight_backward_s=weight_backward / each
    )
    chunks = pp * each
    times = PipelineTimes(chunks=(chunk,) * chunks, sends_s=(message_s,) * (chunks - 1) if message_s else ())
    return run_pipeline(shape, times).makespan_s


def one_row(schedule, pp, vpp):
    given = {"schedule": SCHEDULES.index(schedule), "pp": pp, "vpp": vpp}
    return Candidates(**{name: constant(given.get(name, 1), 1) for name in Candidates.__slots__})


def stage_passes(passes):
    forward, input_backward, weight_backward = (np.asarray([seconds]) for seconds in passes)
    return StagePasses(forward=forward, input_backward=input_backward, weight_backward=weight_backward)


def closed_s(schedule, pp, vpp, num_microbatches, passes, message_s):
    rows = one_row(schedule, pp, vpp)
    found = messages_s(
        rows,
        message_s=np.asarray([message_s]),
        passes=stage_passes(passes),
        depth=rows.pp,
        rounds=constant(num_microbatches, 1),
    )
    return float(found[0])


HOPS = [
    ("1f1b", 1, 1, PASSES),
    ("interleaved", 2, 1, PASSES),
    ("zb-h1", 2, 1, PASSES),
    ("zb-h1", 6, 1, PASSES),
    ("zbv", 1, 1, PASSES),
    ("zbv", 1, 2, PASSES[:2] + PASSES[4:]),
    ("dualpipev", 1, 2, PASSES),
]
"""Schedule, chunks, least micro-batches for each stage, and passes for which nothing is left out."""


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize(("schedule", "vpp", "least", "every"), HOPS)
def test_a_pipeline_fills_and_drains_as_simulated(schedule, vpp, least, every, pp):
    rows = one_row(schedule, pp, vpp)
    for passes in every:
        rounds = least * pp
        idle_s = simulated_s(schedule, pp, vpp, rounds, passes, 0.0) - rounds * sum(passes)
        found = hop_s(
            rows,
            stage_passes(passes),
            chunk_fraction=np.asarray([1 / vpp]),
            depth=rows.pp,
            rounds=constant(rounds, 1),
        )
        assert (pp - 1) * float(found[0]) == pytest.approx(idle_s)


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize(
    ("schedule", "vpp"),
    [("interleaved", 2), ("interleaved", 4), ("zb-h1", 2), ("zb-h1", 4), ("zbv", 1), ("dualpipev", 1)],
)
def test_a_step_with_messages_takes_as_long_as_simulated(schedule, vpp, pp, passes):
    chunks = 2 if schedule in ("zbv", "dualpipev") else vpp
    for rounds in (2, 8):
        shape = (schedule, pp, vpp, rounds * pp, passes)
        free_s = simulated_s(*shape, 0.0)
        for message, tolerance in TOLERANCES.items():
            message_s = message * sum(passes) / 2 / chunks
            found_s = free_s + closed_s(*shape, message_s)
            assert found_s == pytest.approx(simulated_s(*shape, message_s), rel=tolerance)


def test_stages_that_wait_for_messages_have_none_beside_computation():
    assert closed_s("1f1b", 4, 1, 16, PASSES[0], 0.5) == 0.0


def test_one_stage_sends_nothing():
    assert closed_s("interleaved", 1, 2, 16, PASSES[0], 0.5) == 0.0
