"""DualPipe in a plan: two copies of the model in one pipeline, and what their ranks hold, exchange and wait for."""

from dataclasses import replace

import pytest

from shapes import cluster, dense_layer, model
from shardwise.catalog import read_cluster
from shardwise.course.numerics.reenact import reenact
from shardwise.errors import SimulationError
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.plan_file import plan_to_json, read_plan
from shardwise.predict import predict
from shardwise.predict.step_parts import step_parts
from shardwise.predict.timeline import predict_timeline
from shardwise.recipe import Recipe
from shardwise.rules import find_errors
from shardwise.search import IntRange, SearchBounds, search
from shardwise.step.collectives import stage_collectives
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.operations import stage_operations
from shardwise.step.stage_context import StageContext

GPT = model(
    dense_layer(hidden_size=2048, intermediate_size=5632, heads=16, kv_heads=16),
    num_layers=19,
    hidden_size=2048,
    vocab_size=50304,
)


def plan(layout, *, engine="hai-llm", batch=64):
    recipe = Recipe(seq_len=2048, global_batch_size=batch, compile=False)
    return Plan(model=GPT, cluster=cluster(16), recipe=recipe, layout=layout, engine=engine)


DUAL = plan(Layout(pp=8, dp_shard=2, zero_stage=1, schedule="dualpipe"))
V_SHAPED = plan(Layout(pp=4, dp_shard=4, zero_stage=1, schedule="dualpipev"))
PLAIN = plan(Layout(pp=8, dp_shard=2, zero_stage=1, schedule="1f1b"), engine="megatron")


def in_one_domain(asked):
    """The same on one node so large that it does not matter which ranks a group takes."""
    node = replace(asked.cluster.node, gpus_per_node=32, scale_up_domain_gpus=32)
    return replace(asked, cluster=replace(asked.cluster, node=node, num_nodes=1))


def contexts(asked):
    stages = pipeline_stages(model=asked.model, layout=asked.layout)
    return [StageContext(plan=asked, stage=stage) for stage in stages]


def test_every_rank_holds_a_stage_of_each_direction():
    """deepseek-ai/DualPipe: rank i has stages i and P - 1 - i."""
    plain = [stage.num_layers for stage in pipeline_stages(model=GPT, layout=PLAIN.layout)]
    held = pipeline_stages(model=GPT, layout=DUAL.layout)
    assert [[chunk.num_layers for chunk in stage.chunks] for stage in held] == [
        [plain[rank], plain[7 - rank]] for rank in range(8)
    ]
    assert [stage.has_embedding and stage.has_head for stage in held] == [True, *[False] * 6, True]


def test_parameters_are_there_twice_and_optimizer_states_once():
    """DualPipe's README: 2 x parameters a device. Both ranks of a stage divide its optimizer states."""
    dual, plain = predict(DUAL).memory, predict(PLAIN).memory
    for component, ratio in (("parameters", 2), ("gradients", 2), ("optimizer", 1)):
        held, once = (sum(stage.component_bytes(component) for stage in one.stages) for one in (dual, plain))
        assert held == pytest.approx(ratio * once, rel=1e-5)


def test_activations_of_pp_plus_one_stages_are_kept():
    """DualPipe's README: PP + 1, of a rank's two stages."""
    assert [context.held.in_flight_micro_batches for context in contexts(DUAL)] == [4.5] * 8


def test_both_directions_compute_the_step_of_one_model():
    dual, plain = (
        sum(one.count * one.flop for context in contexts(asked) for one in stage_operations(context) if one.k)
        for asked in (DUAL, PLAIN)
    )
    assert dual == plain


def test_it_is_dualpipev_on_half_the_ranks():
    """The V cut in half: 8 stages on 4 ranks with twice the data parallelism, or on 8 with two copies."""
    dual, half = predict(DUAL), predict(V_SHAPED)
    for rank in range(8):
        mine, theirs = dual.memory.stages[rank], half.memory.stages[min(rank, 7 - rank)]
        for component in ("parameters", "gradients", "optimizer", "activations", "logits", "temporaries"):
            assert mine.component_bytes(component) == theirs.component_bytes(component)
    computing = [step_parts(asked, is_free=lambda _: True).step_s for asked in (DUAL, V_SHAPED)]
    assert computing[0] == pytest.approx(computing[1], rel=1e-9)
    inside = [predict(in_one_domain(asked)).time.step_s for asked in (DUAL, V_SHAPED)]
    assert inside[0] == pytest.approx(inside[1], rel=0.02)  # two sums over pairs instead of one over four
    assert dual.time.step_s > 1.05 * half.time.step_s  # the copies of a stage lie on two nodes


def test_gradients_are_summed_over_both_copies_before_data_parallelism_divides_their_halves():
    """Ranks 2 apart stand for data parallelism's, 7 stages of 2 ranks apart for those of both copies."""
    context = contexts(DUAL)[3]
    elements = sum(unit.count * unit.base.full for unit in context.units)
    moved = {}
    for call in stage_collectives(context):
        if call.kind in ("reduce_scatter", "all_gather"):
            key = (call.kind, call.group_size, call.stride)
            moved[key] = moved.get(key, 0) + call.count * call.num_bytes
    for kind, size in (("reduce_scatter", 4), ("all_gather", 2)):
        assert moved[kind, 2, 14] == pytest.approx(size * elements, rel=1e-6)
        assert moved[kind, 2, 1] == pytest.approx(size * elements / 2, rel=1e-6)


def test_every_rank_sends_both_ways():
    """16 of 32 micro-batches in each direction: inner ranks hand on both, the first one's head hands on nothing."""
    sends = [
        {call.name: call.count for call in stage_collectives(context) if call.axis == "pp" and call.kind == "send_recv"}
        for context in contexts(DUAL)
    ]
    assert sends[3] == {"pipeline forward": 2 * 16, "pipeline backward": 2 * 16}
    assert sends[0] == {"pipeline forward": 16, "pipeline backward": 16}


def test_it_waits_less_than_one_forward_one_backward():
    waits = [
        next(one.duration_s for one in predict(asked).time.components if one.component == "pipeline_bubble")
        for asked in (DUAL, PLAIN)
    ]
    assert waits[0] < waits[1] / 2


def test_without_a_pipeline_there_is_one_copy():
    alone = Layout(dp_shard=4, schedule="dualpipe")
    assert (alone.model_copies, alone.state_shard_size) == (1, 4)


@pytest.mark.parametrize("batch", [30, 34])
def test_too_few_or_odd_micro_batches_are_refused(batch):
    """15 and 17 of them on 8 ranks."""
    assert [refusal.rule for refusal in find_errors(plan(DUAL.layout, batch=batch))] == ["layout-dualpipe-microbatches"]


def test_only_its_own_engine_offers_it():
    assert find_errors(DUAL) == ()
    for engine in ("megatron", "native", "torchtitan", "deepspeed"):
        refused = {refusal.rule for refusal in find_errors(plan(DUAL.layout, engine=engine))}
        assert "engine-schedule" in refused


def test_a_prediction_says_that_the_engine_is_not_public():
    assert any(sentence.startswith("hai-llm is not public") for sentence in predict(DUAL).assumptions)
    assert not any("hai-llm" in sentence for sentence in predict(PLAIN).assumptions)


def test_it_is_drawn():
    first = predict_timeline(DUAL).ranks[0]
    assert {span.chunk for span in first.spans if span.category == "forward"} >= {0, 15}


def test_a_search_tries_it_where_it_is_pinned():
    asked = {"model": GPT, "cluster": DUAL.cluster, "recipe": DUAL.recipe, "engine": "hai-llm"}
    pp = IntRange(low=2, high=8)
    found = search(**asked, bounds=SearchBounds(schedule=("dualpipe",), pp=pp)).plans
    assert found
    assert {ranked.plan.layout.schedule for ranked in found} == {"dualpipe"}
    by_itself = search(**asked, bounds=SearchBounds(pp=pp)).plans
    assert {ranked.plan.layout.schedule for ranked in by_itself} == {"zb-h1"}


def test_its_numbers_are_not_re_enacted():
    with pytest.raises(SimulationError, match="two copies"):
        reenact(DUAL, {}, [])


def test_the_plan_file_says_it():
    written = plan_to_json(replace(DUAL, model=read_model("llama-3.1-8b"), cluster=read_cluster("2xdgx-h100")))
    assert read_plan(written).layout == DUAL.layout
    assert (written["layout"]["schedule"], written["engine"]) == ("dualpipe", "hai-llm")
