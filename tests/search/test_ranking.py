"""Ties, safety, reasons and the Pareto front, on predictions written by hand."""

from dataclasses import replace

import pytest

from shardwise.layout import Layout
from shardwise.ledger import MEMORY_COMPONENTS
from shardwise.prediction import (
    MemoryEntry,
    MemoryPrediction,
    Prediction,
    StageMemory,
    Throughput,
    TimeEntry,
    TimePrediction,
)
from shardwise.search.evaluation import Evaluated
from shardwise.search.ranking import objective_value, pareto_front, rank, ranked_front
from shardwise.search.simplicity import num_axes, straddles_nodes
from shardwise.units import GIB

CAPACITY_BYTES = 80 * GIB


def prediction(*, step_s, needed_gib, **components_s):
    used = needed_gib * GIB
    stage = StageMemory(
        stage=0,
        layers=32,
        in_flight_micro_batches=1.0,
        peak_phase="backward",
        peak_moment="backward of block 1 of 32",
        peak_allocated_bytes=used - 2 * GIB,
        peak_reserved_bytes=used - 2 * GIB,
        device_used_bytes=used,
        components=tuple(MemoryEntry(component=name, num_bytes=0) for name in MEMORY_COMPONENTS),
        phases=(),
        largest_tensors=(),
        host_bytes=0,
        nvme_bytes=0,
    )
    memory = MemoryPrediction(
        capacity_bytes=CAPACITY_BYTES,
        stages=(stage,),
        host_capacity_bytes=0,
        host_bytes_per_node=0,
        nvme_capacity_bytes=0,
        nvme_bytes_per_node=0,
        low_fraction=0.95,
        high_fraction=1.1,
    )
    time = TimePrediction(
        step_s=step_s,
        step_low_s=0.9 * step_s,
        step_high_s=1.06 * step_s,
        components=tuple(TimeEntry(component=name, duration_s=value) for name, value in components_s.items()),
        communication=(),
    )
    throughput = Throughput(
        tokens_per_s=1.0,
        tokens_per_s_per_gpu=1.0,
        mfu_fraction=0.4,
        hfu_fraction=0.4,
        mfu_convention="test",
        model_flop_per_step=1.0,
        peak_flop_per_s=1.0,
    )
    return Prediction(memory=memory, time=time, throughput=throughput, cost=None)


@pytest.fixture
def evaluated(make_question):
    question = make_question(cluster="64xh100-sxm")

    def build(layout, **figures):
        family = (layout.tp, layout.cp, layout.pp, layout.ep, layout.dp_replicate, layout.dp_shard)
        return Evaluated(family=family, plan=replace(question, layout=layout), prediction=prediction(**figures))

    return build


SIMPLE = Layout(dp_shard=64)
TENSOR = Layout(dp_shard=8, tp=8)
PIPELINE = Layout(dp_shard=4, tp=8, pp=2)


def test_the_simplest_of_the_ties_wins_and_says_so(evaluated):
    """The band is 6 % wide on top, so half of it, 3 %, is a tie."""
    found = [evaluated(TENSOR, step_s=10.0, needed_gib=40), evaluated(SIMPLE, step_s=10.2, needed_gib=60)]
    ranked = rank(found, objective="step_time", limit=10)
    assert ranked[0].plan.layout == SIMPLE
    assert ranked[0].ratio_to_best == pytest.approx(1.02)
    assert "simpler" in ranked[0].why
    assert "dp_shard=8 tp=8" in ranked[0].why
    assert ranked[1].is_tie


def test_a_tie_names_the_fastest_variant_even_of_the_same_degrees(evaluated):
    """The safe plan stands for its degrees; the fastest one, at the edge, is named with what it differs in."""
    edge = evaluated(SIMPLE, step_s=10.0, needed_gib=78)
    safe = evaluated(SIMPLE, step_s=10.2, needed_gib=50)
    first, fastest = rank([edge, safe], objective="step_time", limit=10)
    assert first.ratio_to_best == pytest.approx(1.02)
    assert first.why.startswith("10.20 s per step, 2.0% from the fastest (dp_shard=64, recompute none, micro-batch 1)")
    assert "safer" in first.why
    assert fastest.ratio_to_best == 1.0
    assert fastest.is_tie


def test_with_fewest_gpus_the_fastest_of_them_wins_and_ties_are_in_time(evaluated):
    found = [evaluated(TENSOR, step_s=10.0, needed_gib=40), evaluated(SIMPLE, step_s=12.8, needed_gib=60)]
    ranked = rank(found, objective="fewest_gpus", limit=10)
    assert ranked[0].plan.layout == TENSOR
    assert ranked[0].why == (
        "64 GPUs are the fewest, in whole nodes, on which a layout was found. "
        "Fastest of 2 layouts that fit: 10.00 s per step with 40.00 GiB to spare."
    )
    assert not ranked[1].is_tie
    assert "28.0% slower" in ranked[1].why


def test_with_memory_as_the_objective_ties_and_sentences_are_about_memory(evaluated):
    """The memory band reaches 10 % up, so 5 % is a tie: 41.6 GiB ties with 40, 44 does not."""
    least = evaluated(PIPELINE, step_s=20.0, needed_gib=40)
    fast = evaluated(TENSOR, step_s=10.0, needed_gib=41.6)
    large = evaluated(SIMPLE, step_s=10.0, needed_gib=44)
    ranked = rank([least, fast, large], objective="memory", limit=10)
    assert [item.plan.layout for item in ranked] == [TENSOR, PIPELINE, SIMPLE]
    assert ranked[0].why == (
        "41.60 GiB needed per GPU, 4.0% more than the smallest (dp_shard=4 tp=8 pp=2), "
        "which is inside the error of a prediction; it is simpler, with 10.00 s per step."
    )
    assert ranked[1].is_tie
    assert ranked[1].why == ("As small within the error (-3.8%), but it combines 3 axes instead of 2; 100.0% slower.")
    assert not ranked[2].is_tie
    assert ranked[2].why == "Needs 2.40 GiB more (+5.8%); as fast."


def test_among_ties_of_equally_many_axes_shard_groups_fill_nodes(evaluated):
    uneven = evaluated(Layout(dp_shard=6, dp_replicate=4), step_s=10.0, needed_gib=40)
    even = evaluated(Layout(dp_shard=8, dp_replicate=3), step_s=10.05, needed_gib=40)
    assert straddles_nodes(uneven.plan)
    assert not straddles_nodes(even.plan)
    ranked = rank([uneven, even], objective="step_time", limit=10)
    assert ranked[0].plan.layout == even.plan.layout
    assert "fill whole nodes" in ranked[0].why
    assert "straddle" in ranked[1].why


def test_beyond_the_tie_the_faster_plan_wins(evaluated):
    found = [evaluated(TENSOR, step_s=10.0, needed_gib=40), evaluated(SIMPLE, step_s=10.5, needed_gib=60)]
    assert rank(found, objective="step_time", limit=10)[0].plan.layout == TENSOR


def test_a_simple_plan_at_the_edge_of_the_device_does_not_beat_a_safe_tie(evaluated):
    """75 GiB needed with a band up to 1.1 reach 82.5 GiB of 80."""
    found = [evaluated(TENSOR, step_s=10.0, needed_gib=40), evaluated(SIMPLE, step_s=10.1, needed_gib=75)]
    ranked = rank(found, objective="step_time", limit=10)
    assert ranked[0].plan.layout == TENSOR
    assert "memory band" in ranked[1].why


def test_a_safe_variant_stands_for_its_degrees_when_the_fastest_is_at_the_edge(evaluated):
    edge = evaluated(SIMPLE, step_s=10.0, needed_gib=78)
    safe = evaluated(SIMPLE, step_s=10.2, needed_gib=50)
    ranked = rank([edge, safe], objective="step_time", limit=10)
    assert [item.prediction.memory.needed_bytes for item in ranked] == [50 * GIB, 78 * GIB]
    assert [item.prediction.memory.needed_bytes for item in rank([edge, safe], objective="step_time", limit=1)] == [
        50 * GIB
    ]


def offloading(found, *, step_s):
    """The same on a part whose band reaches 60 % up, with its activations on the host."""
    recipe = replace(found.plan.recipe, activation_offload=True)
    return wide(replace(found, plan=replace(found.plan, recipe=recipe)), step_s=step_s)


def wide(found, *, step_s):
    time = replace(found.prediction.time, step_s=step_s, step_high_s=1.6 * step_s)
    return replace(found, prediction=replace(found.prediction, time=time))


def test_a_plan_that_moves_less_to_the_host_ties_within_five_percent_whatever_the_band(evaluated):
    fast = offloading(evaluated(TENSOR, step_s=1.0, needed_gib=40), step_s=10.0)
    inside = wide(evaluated(PIPELINE, step_s=1.0, needed_gib=40), step_s=10.4)
    beyond = wide(evaluated(SIMPLE, step_s=1.0, needed_gib=40), step_s=10.6)
    first, second = rank([fast, inside], objective="step_time", limit=10)
    assert first.plan.layout == PIPELINE
    assert second.is_tie
    first, second = rank([fast, beyond], objective="step_time", limit=10)
    assert first.plan.layout == TENSOR
    assert not second.is_tie


def test_what_is_faster_than_the_recommended_says_what_speaks_against_it(evaluated):
    fast = offloading(evaluated(SIMPLE, step_s=1.0, needed_gib=40), step_s=10.0)
    host = offloading(evaluated(TENSOR, step_s=1.0, needed_gib=40), step_s=10.2)
    safe = wide(evaluated(SIMPLE, step_s=1.0, needed_gib=40), step_s=10.4)
    ranked = rank([fast, host, safe], objective="step_time", limit=10)
    assert [item.prediction.time.step_s for item in ranked] == [10.4, 10.0, 10.2]
    assert ranked[0].why.startswith(
        "10.40 s per step, 4.0% from the fastest (dp_shard=64, recompute none, micro-batch 1, activations offloaded)"
    )
    assert [item.why for item in ranked[1:]] == [
        "As fast within the error (-3.8%), but it waits for activations on the host, which a prediction knows least; "
        "needs as much.",
        "As fast within the error (-1.9%), but it waits for activations on the host, which a prediction knows least; "
        "needs as much.",
    ]


def test_a_recommendation_over_a_simpler_tie_says_that_it_moves_nothing(evaluated):
    """The fastest lies at the edge; the simpler, faster tie waits for its host."""
    edge = evaluated(PIPELINE, step_s=10.0, needed_gib=78)
    recipe = replace(edge.plan.recipe, activation_offload=True)
    host = evaluated(SIMPLE, step_s=10.1, needed_gib=30)
    host = replace(host, plan=replace(host.plan, recipe=recipe))
    ranked = rank([edge, host, evaluated(TENSOR, step_s=10.2, needed_gib=50)], objective="step_time", limit=10)
    assert ranked[0].plan.layout == TENSOR
    assert ranked[0].why.endswith(
        "it is simpler and safer: the other's memory band reaches beyond the device; unlike a faster tie it moves "
        "nothing to the host, with 30.00 GiB to spare."
    )


def test_a_fastest_of_the_same_degrees_is_told_apart(evaluated):
    """Only gathering again sets them apart, and the one that fits safely is recommended."""
    edge = evaluated(replace(SIMPLE, reshard_after_forward=False), step_s=10.0, needed_gib=78)
    ranked = rank([edge, evaluated(SIMPLE, step_s=10.2, needed_gib=50)], objective="step_time", limit=10)
    assert "(dp_shard=64, recompute none, micro-batch 1, reshard_after_forward=off)" in ranked[0].why


def test_the_front_is_compared_with_the_recommended_plan(evaluated):
    least = evaluated(PIPELINE, step_s=15.0, needed_gib=30)
    found = [evaluated(TENSOR, step_s=10.0, needed_gib=40), evaluated(SIMPLE, step_s=10.2, needed_gib=60), least]
    front = ranked_front(found, objective="step_time")
    assert [item.rank for item in front] == [1, 2]
    assert [item.plan.layout for item in front] == [TENSOR, PIPELINE]
    assert [item.is_tie for item in front] == [True, False]
    assert front[1].why.startswith("47.1% slower (+4.80 s)")
    assert ranked_front([], objective="step_time") == ()


def test_the_reason_for_losing_names_the_largest_losses(evaluated):
    winner = evaluated(SIMPLE, step_s=10.0, needed_gib=40, forward=3.0, pipeline_bubble=0.0, exposed_communication=1.0)
    loser = evaluated(PIPELINE, step_s=13.0, needed_gib=30, forward=3.0, pipeline_bubble=2.5, exposed_communication=1.5)
    lost = rank([winner, loser], objective="step_time", limit=10)[1]
    assert lost.differences[0].component == "pipeline_bubble"
    assert lost.differences[0].slower_s == pytest.approx(2.5)
    assert lost.why == (
        "30.0% slower (+3.00 s): pipeline bubble +2.50 s, exposed communication +500.0 ms; saves 10.00 GiB."
    )


def test_no_plan_on_the_front_is_beaten_in_both(evaluated):
    found = [
        evaluated(SIMPLE, step_s=10.0, needed_gib=70),
        evaluated(TENSOR, step_s=11.0, needed_gib=75),
        evaluated(PIPELINE, step_s=12.0, needed_gib=40),
    ]
    assert [item.plan.layout for item in pareto_front(found)] == [SIMPLE, PIPELINE]


def test_objectives_are_seconds_dollars_bytes_and_gpus(evaluated):
    found = evaluated(SIMPLE, step_s=36.0, needed_gib=50)
    price = found.plan.cluster.price
    assert price is not None
    assert objective_value(found, "step_time") == 36.0
    assert objective_value(found, "cost") == pytest.approx(0.64 * price.usd_per_gpu_hour)
    assert objective_value(found, "memory") == 50 * GIB
    assert objective_value(found, "fewest_gpus") == 64


def test_axes_are_counted_once_each():
    assert num_axes(Layout()) == 0
    assert num_axes(Layout(dp_shard=8)) == 1
    assert num_axes(Layout(dp_replicate=2, dp_shard=4, tp=2, cp=2, pp=2, vpp=2, ep=2)) == 7


def test_nothing_ranked_is_no_plan():
    assert rank([], objective="step_time", limit=10) == ()
