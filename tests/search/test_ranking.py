"""Prices, safety, reasons and the Pareto front, on predictions written by hand."""

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
from shardwise.search.price_list import MAX_LOSS_FRACTION, asked_fraction, charged, price_fraction
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
        attention_fraction=0.1,
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


def test_what_a_step_gains_has_to_pay_its_price(evaluated):
    """Tensor parallelism costs 2 %: it is 1.9 % faster in vain, and recommended where it is 2.5 % faster."""
    found = [evaluated(TENSOR, step_s=10.0, needed_gib=40), evaluated(SIMPLE, step_s=10.19, needed_gib=60)]
    ranked = rank(found, objective="step_time", limit=10)
    assert ranked[0].plan.layout == SIMPLE
    assert ranked[0].ratio_to_best == pytest.approx(1.019)
    assert ranked[0].why == (
        "10.19 s per step with 20.00 GiB to spare. The fastest that fits safely, dp_shard=8 tp=8, takes 10.00 s, 1.9% "
        "less; it gains less than is asked for tensor parallelism (2.0%)."
    )
    assert ranked[1].is_tie
    assert ranked[1].why == (
        "1.9% faster, but it gains less than is asked for tensor parallelism (2.0%); saves 20.00 GiB."
    )
    dearer = rank([found[0], evaluated(SIMPLE, step_s=10.25, needed_gib=60)], objective="step_time", limit=10)
    assert dearer[0].plan.layout == TENSOR


@pytest.mark.parametrize(("step_s", "layers"), [(9.9, None), (9.6, 42)])
def test_a_partial_count_of_recomputed_layers_has_to_pay(evaluated, step_s, layers):
    """35 layers of 36 gained 0.4 %, which nobody tunes a run for; 42 of 80 that gain 4 % stay."""
    every, part = (evaluated(SIMPLE, step_s=seconds, needed_gib=40) for seconds in (10.0, step_s))
    recipe = replace(part.plan.recipe, recompute="full", recompute_layers=42)
    part = replace(part, plan=replace(part.plan, recipe=recipe))
    every = replace(every, plan=replace(every.plan, recipe=replace(recipe, recompute_layers=None)))
    best = rank([part, every], objective="step_time", limit=1)[0]
    assert best.plan.recipe.recompute_layers == layers


def test_a_count_of_layers_is_nothing_where_nothing_is_recomputed(evaluated):
    plan = evaluated(SIMPLE, step_s=1.0, needed_gib=40).plan
    counted = replace(plan, recipe=replace(plan.recipe, recompute_layers=3))
    assert price_fraction(counted) == price_fraction(plan)


@pytest.mark.parametrize(
    ("layout", "recommended"),
    [
        (TENSOR, SIMPLE),
        (PIPELINE, TENSOR),
        (Layout(dp_shard=8, cp=2, pp=4), TENSOR),  # both take steps that the other does not
        (Layout(dp_shard=4, tp=2, cp=4, pp=2), SIMPLE),  # more than a recommended plan may lose
    ],
)
def test_a_plan_is_recommended_as_soon_as_it_gains_what_is_asked(evaluated, layout, recommended):
    """The column summed the steps that the recommended plan does not take, its own unpaid: 16.0 % where 8.9 % did."""
    now = evaluated(recommended, step_s=10.0, needed_gib=40)
    asked = asked_fraction(evaluated(layout, step_s=1.0, needed_gib=40).plan, beyond=now.plan)
    assert 0 < asked <= 1 - 1 / (1 + MAX_LOSS_FRACTION)
    for more, preferred in ((-1e-6, recommended), (1e-6, layout)):
        other = evaluated(layout, step_s=10.0 * (1 - asked - more), needed_gib=40)
        assert rank([now, other], objective="step_time", limit=1)[0].plan.layout == preferred


def test_a_plan_that_moves_more_to_the_host_has_no_most_that_is_asked(evaluated):
    now, other = (evaluated(SIMPLE, step_s=10.0, needed_gib=40) for _ in range(2))
    plan = replace(other.plan, recipe=replace(other.plan.recipe, offload="parameters"))
    assert asked_fraction(plan, beyond=now.plan) == pytest.approx(1 - 1 / 1.38)
    assert asked_fraction(now.plan, beyond=plan) == 0


def test_no_price_makes_the_recommended_plan_a_tenth_slower_than_the_fastest_safe_one(evaluated):
    """Three axes at 8,192 tokens cost more than 10 % together: 9 % behind a simple plan is recommended, 11 % not."""
    dear = Layout(dp_shard=4, tp=2, cp=4, pp=2)
    fast = evaluated(dear, step_s=10.0, needed_gib=40)
    near, far = (evaluated(SIMPLE, step_s=step_s, needed_gib=40) for step_s in (10.9, 11.1))
    assert rank([fast, near], objective="step_time", limit=1)[0].plan.layout == SIMPLE
    assert rank([fast, far], objective="step_time", limit=1)[0].plan.layout == dear


def test_the_window_is_measured_from_no_plan_that_offloads(evaluated):
    """Faster by more than a third with activations on the host pays for them; no plan without has to be near."""
    host = offloading(evaluated(SIMPLE, step_s=1.0, needed_gib=40), step_s=10.0)
    near = evaluated(TENSOR, step_s=10.5, needed_gib=40)
    assert rank([host, near], objective="step_time", limit=1)[0].plan.layout == TENSOR
    far = evaluated(TENSOR, step_s=13.6, needed_gib=40)
    assert rank([host, far], objective="step_time", limit=1)[0].plan == host.plan


def test_the_fastest_variant_is_named_even_of_the_same_degrees(evaluated):
    """The safe plan stands for its degrees; the fastest one, at the edge, is named with what it differs in."""
    edge = evaluated(SIMPLE, step_s=10.0, needed_gib=78)
    safe = evaluated(SIMPLE, step_s=10.2, needed_gib=50)
    first, fastest = rank([edge, safe], objective="step_time", limit=10)
    assert first.ratio_to_best == pytest.approx(1.02)
    assert first.why == (
        "10.20 s per step with 30.00 GiB to spare. The fastest, dp_shard=64, recompute none, micro-batch 1, takes "
        "10.00 s, 2.0% less; its memory band reaches beyond the device."
    )
    assert fastest.ratio_to_best == 1.0


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
        "41.60 GiB needed per GPU with 10.00 s per step. The smallest that fits safely, dp_shard=4 tp=8 pp=2, needs "
        "3.8% less and is 100.0% slower; that is within the error of a prediction."
    )
    assert ranked[1].is_tie
    assert ranked[1].why == ("Saves 1.60 GiB (-3.8%), but that is within the error of a prediction; is 100.0% slower.")
    assert not ranked[2].is_tie
    assert ranked[2].why == "Needs 2.40 GiB more than the recommended (+5.8%); is as fast."


def test_shard_groups_that_fill_servers_are_cheaper(evaluated):
    uneven = evaluated(Layout(dp_shard=6, dp_replicate=4), step_s=10.0, needed_gib=40)
    even = evaluated(Layout(dp_shard=8, dp_replicate=3), step_s=10.05, needed_gib=40)
    assert straddles_nodes(uneven.plan)
    assert not straddles_nodes(even.plan)
    ranked = rank([uneven, even], objective="step_time", limit=10)
    assert ranked[0].plan.layout == even.plan.layout
    assert "shard groups that straddle servers (1.9%)" in ranked[0].why
    assert "straddle" in ranked[1].why


def test_a_gain_above_the_price_wins(evaluated):
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


def test_what_is_faster_than_the_recommended_says_what_speaks_against_it(evaluated):
    """Activations on the host cost 33 %, and tensor parallelism 2 %: of the recommended step 0.33 / 1.33 are asked."""
    fast = offloading(evaluated(SIMPLE, step_s=1.0, needed_gib=40), step_s=10.0)
    host = offloading(evaluated(TENSOR, step_s=1.0, needed_gib=40), step_s=10.2)
    safe = wide(evaluated(SIMPLE, step_s=1.0, needed_gib=40), step_s=10.4)
    ranked = rank([fast, host, safe], objective="step_time", limit=10)
    assert [item.prediction.time.step_s for item in ranked] == [10.4, 10.0, 10.2]
    assert ranked[0].why.endswith(
        "The fastest that fits safely, dp_shard=64, recompute none, micro-batch 1, activations offloaded, takes "
        "10.00 s, 3.8% less; it gains less than is asked for activations on the host (24.8%)."
    )
    assert [item.why for item in ranked[1:]] == [
        "3.8% faster, but it gains less than is asked for activations on the host (24.8%); needs as much.",
        "1.9% faster, but it gains less than the 25.9% asked of it: activations on the host (24.4%) + tensor "
        "parallelism (1.5%); needs as much.",
    ]


def test_where_there_is_one_set_of_degrees_its_variants_are_compared(evaluated):
    """On one GPU micro-batch and recomputation are all there is to choose; each way is listed once."""
    one = evaluated(Layout(), step_s=10.0, needed_gib=40)
    recipes = [
        replace(one.plan.recipe, micro_batch_size=size, recompute=mode) for size in (1, 2) for mode in ("none", "full")
    ]
    found = [
        replace(wide(one, step_s=10.0 + number), plan=replace(one.plan, recipe=recipe))
        for number, recipe in enumerate([*recipes, replace(recipes[-1], recompute_layers=3)])
    ]
    ranked = rank(found, objective="step_time", limit=10)
    assert [item.prediction.time.step_s for item in ranked] == [10.0, 11.0, 12.0, 13.0]
    assert len(rank(found, objective="step_time", limit=2)) == 2


def test_a_fastest_of_the_same_degrees_is_told_apart(evaluated):
    """Only gathering again sets them apart, and the one that fits safely is recommended."""
    edge = evaluated(replace(SIMPLE, reshard_after_forward=False), step_s=10.0, needed_gib=78)
    ranked = rank([edge, evaluated(SIMPLE, step_s=10.2, needed_gib=50)], objective="step_time", limit=10)
    assert "dp_shard=64, recompute none, micro-batch 1, reshard_after_forward=off, takes" in ranked[0].why


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


@pytest.mark.parametrize(("engine", "is_due"), [("native", True), ("megatron", False)])
def test_a_pipeline_under_adapters_is_dear_but_in_megatron(engine, is_due, make_question):
    """Megatron-Bridge documents LoRA over pipelines: the price said that nobody runs the two together."""
    question = make_question(model="llama-2-13b", cluster="16xh100-sxm", engine=engine, adapter="lora")
    due = charged(replace(question, layout=Layout(tp=8, pp=2)), beyond=replace(question, layout=Layout(tp=8)))
    assert ("a pipeline under adapters" in {price.name for price in due}) == is_due
