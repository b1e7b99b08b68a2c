"""Pipelines of unequal stages against simulations and closed forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.layout import Layout
from shardwise.predict.pipeline_time import MicroBatchTimes, pipeline_time_s


def stage(forward=1.0, input_backward=1.0, weight_backward=1.0):
    return MicroBatchTimes(forward_s=forward, input_backward_s=input_backward, weight_backward_s=weight_backward)


def total(stages, schedule, *, m=16, vpp=1):
    layout = Layout(pp=len(stages), vpp=vpp, schedule=schedule)
    return pipeline_time_s(stages=stages, layout=layout, num_microbatches=m)


@pytest.mark.parametrize(
    ("schedule", "vpp", "expected"),
    [("gpipe", 1, 57), ("1f1b", 1, 57), ("interleaved", 3, 51), ("zb-h1", 1, 51), ("zb-h2", 1, 51), ("zbv", 1, 49.5)],
)
def test_four_equal_stages_and_sixteen_micro_batches(schedule, vpp, expected):
    """F = B = W = 1: 57 by simulation for GPipe and 1F1B; a third of the bubble for v = 3 and for ZB-H1."""
    assert total([stage()] * 4, schedule, vpp=vpp) == expected


def simulated_1f1b(stages, m):
    """1F1B by list scheduling: each stage alternates as soon as its inputs are there."""
    p = len(stages)
    forward = [[None] * m for _ in range(p)]
    backward = [[None] * m for _ in range(p)]
    orders = []
    for s in range(p):
        warm = min(m, p - s)
        order = [("F", i) for i in range(warm)]
        for i in range(m - warm):
            order += [("B", i), ("F", warm + i)]
        order += [("B", i) for i in range(m - warm, m)]
        orders.append(order)
    clock, position = [0.0] * p, [0] * p
    while any(position[s] < len(orders[s]) for s in range(p)):
        for s in range(p):
            while position[s] < len(orders[s]):
                kind, i = orders[s][position[s]]
                if kind == "F":
                    ready = 0.0 if s == 0 else forward[s - 1][i]
                    duration = stages[s].forward_s
                else:
                    ready = forward[s][i] if s == p - 1 else backward[s + 1][i]
                    duration = stages[s].input_backward_s + stages[s].weight_backward_s
                if ready is None:
                    break
                clock[s] = max(clock[s], ready) + duration
                (forward if kind == "F" else backward)[s][i] = clock[s]
                position[s] += 1
    return max(clock)


@pytest.mark.parametrize("last_ratio", [1.0, 1.3, 1.6])
@pytest.mark.parametrize(("p", "m"), [(2, 5), (4, 16), (8, 11)])
def test_uneven_stages_agree_with_an_event_simulation(last_ratio, p, m):
    stages = [stage()] * (p - 1) + [stage(last_ratio, last_ratio, last_ratio)]
    assert total(stages, "1f1b", m=m) == pytest.approx(simulated_1f1b(stages, m), rel=1e-9)


def test_one_stage_only_works():
    assert total([stage()], "1f1b", m=7) == 21


@given(
    durations=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=16),
    m=st.integers(1, 64),
    schedule=st.sampled_from(["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zbv", "dualpipev"]),
)
def test_a_pipeline_is_never_faster_than_its_slowest_stage(durations, m, schedule):
    stages = [stage(d, d, d) for d in durations]
    whole = total(stages, schedule, m=m, vpp=2)
    slowest = m * max(s.total_s for s in stages)
    plain = total(stages, "1f1b", m=m)
    assert slowest * (1 - 1e-9) <= whole <= plain * (1 + 1e-9)
