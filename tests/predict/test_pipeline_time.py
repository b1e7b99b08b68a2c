"""Pipelines of unequal stages against simulations and closed forms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shapes
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.pipeline_time import pipeline_time_s, unpaired_fraction
from shardwise.recipe import Recipe
from shardwise.schedules.actions import Degrees
from shardwise.schedules.shape import ScheduleShape
from shardwise.schedules.table import SCHEDULE_KINDS
from shardwise.simulate.pipeline import run_pipeline
from shardwise.simulate.pipeline_times import ChunkTimes, PipelineTimes


def stage(forward=1.0, input_backward=1.0, weight_backward=1.0):
    return ChunkTimes(forward_s=forward, input_backward_s=input_backward, weight_backward_s=weight_backward)


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


SECONDS = st.sampled_from([0.2, 0.5, 1.0, 1.1, 1.7])
CHUNKS = st.lists(
    st.builds(ChunkTimes, forward_s=SECONDS, input_backward_s=SECONDS, weight_backward_s=SECONDS),
    min_size=2,
    max_size=6,
)


@given(chunks=CHUNKS, m=st.integers(1, 20))
def test_the_closed_form_of_gpipe_equals_its_simulation(chunks, m):
    stages = [stage(c.forward_s, c.input_backward_s, c.weight_backward_s) for c in chunks]
    shape = ScheduleShape(name="gpipe", pp=len(chunks), num_microbatches=m)
    simulated = run_pipeline(shape, PipelineTimes(chunks=tuple(chunks)))
    assert total(stages, "gpipe", m=m) == pytest.approx(simulated.makespan_s, rel=1e-9)


@given(ratios=st.lists(SECONDS, min_size=2, max_size=6), m=st.integers(6, 40))
def test_the_closed_form_of_1f1b_is_never_below_its_simulation(ratios, m):
    """A slow first stage runs its forwards while the others are filled, which the closed form does not see."""
    chunks = tuple(ChunkTimes(forward_s=r, input_backward_s=r, weight_backward_s=r) for r in ratios)
    shape = ScheduleShape(name="1f1b", pp=len(ratios), num_microbatches=m)
    simulated_s = run_pipeline(shape, PipelineTimes(chunks=chunks)).makespan_s
    closed_s = total([stage(r, r, r) for r in ratios], "1f1b", m=m)
    assert 3 * m * max(ratios) * (1 - 1e-9) <= simulated_s <= closed_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("schedule", "vpp"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-h2", 1), ("zbv", 2)]
)
@pytest.mark.parametrize("m", [8, 16, 64])
def test_the_fast_road_is_near_the_simulation(schedule, vpp, m):
    """Equal stages, forward and both backwards alike, as many micro-batches as fill the pipeline."""
    third = ChunkTimes(forward_s=1.0 / vpp, input_backward_s=1.0 / vpp, weight_backward_s=1.0 / vpp)
    shape = ScheduleShape(name=schedule, pp=4, vpp=vpp, num_microbatches=m)
    simulated_s = run_pipeline(shape, PipelineTimes(chunks=(third,) * (4 * vpp))).makespan_s
    closed_s = total([stage()] * 4, schedule, m=m, vpp=vpp)
    assert closed_s == pytest.approx(simulated_s, rel=0.05)


@pytest.mark.parametrize(
    ("schedule", "pp", "micro_batches"), [("dualpipe", 16, 120), ("dualpipe", 4, 8), ("dualpipev", 8, 20)]
)
def test_the_share_of_forwards_without_a_partner_is_that_of_the_orders(schedule, pp, micro_batches):
    plan = Plan(
        model=shapes.llama_3_8b(32),
        cluster=shapes.cluster(pp),
        recipe=Recipe(seq_len=2048, global_batch_size=micro_batches),
        layout=Layout(pp=pp, schedule=schedule),
    )
    degrees = Degrees(pp=pp, num_microbatches=micro_batches, vpp=2)
    actions = [action for rank in range(pp) for action in SCHEDULE_KINDS[schedule].order(rank, degrees)]
    forwards = [action for action in actions if action.kind == "forward"]
    assert unpaired_fraction(plan) == pytest.approx(1 - sum(one.joins_next for one in actions) / len(forwards))
