"""Tensor-parallel collectives in pieces under their products."""

from dataclasses import replace

import pytest

import shapes
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.async_tensor_parallel import pieced_s, product_pairs
from shardwise.predict.step_parts import step_parts
from shardwise.predict.time import predict_time
from shardwise.recipe import Recipe
from shardwise.step.block_operations import block_operations
from shardwise.step.operation_context import operation_context
from shardwise.step.placement import pipeline_stages
from shardwise.step.stage_context import StageContext


def plan_of(*, engine="native", is_async=True, tp=8):
    layout = Layout(tp=tp, zero_stage=0, sequence_parallel=True, async_tensor_parallel=is_async)
    recipe = Recipe(seq_len=8192, micro_batch_size=4)
    return Plan(model=shapes.llama_3_8b(4), cluster=shapes.cluster(tp), recipe=recipe, layout=layout, engine=engine)


def pairs_of(plan):
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    context = StageContext(plan=plan, stage=stage)
    layer = plan.model.layers[0]
    return product_pairs(layer, block_operations(layer, operation_context(context), plan.recipe))


def exposed_s(plan):
    communication = predict_time(plan)[0].communication
    return sum(entry.exposed_s for entry in communication if entry.name.startswith("sequence parallel"))


def test_query_key_and_value_share_a_gather_and_their_gradients_a_reduction():
    forward, _, backward, _ = pairs_of(plan_of())
    assert [product.name.rpartition(".")[2] for product in forward.gathering] == ["q_proj", "k_proj", "v_proj"]
    assert len(forward.scattering) == 1
    assert len(backward.gathering) == 1
    assert len(backward.scattering) == 3


def test_megatrons_joined_projections_are_one_product_in_both_directions():
    forward, _, backward, _ = pairs_of(plan_of(engine="megatron"))
    assert len(forward.gathering) == len(backward.scattering) == 1


@pytest.mark.parametrize(("work_s", "call_s", "took_s"), [(8.0, 3.0, 8.0), (4.0, 6.0, 7.0), (0.0, 6.0, 6.0)])
def test_a_collective_in_pieces_waits_for_one_piece_of_the_product(work_s, call_s, took_s):
    assert pieced_s(work_s=work_s, call_s=call_s, ranks=4) == took_s


def test_pieces_hide_part_of_the_communication_and_never_all_of_it():
    hidden, waited = exposed_s(plan_of()), exposed_s(plan_of(is_async=False))
    assert 0 < hidden < waited


def test_a_joined_projection_hides_more_than_three():
    """Megatron's one product can be fused with the reduce-scatter of its input gradient."""
    torch_share = exposed_s(plan_of()) / exposed_s(plan_of(is_async=False))
    joined_share = exposed_s(plan_of(engine="megatron")) / exposed_s(plan_of(engine="megatron", is_async=False))
    assert joined_share < torch_share


def test_shorter_documents_take_less_attention_time():
    whole = plan_of(is_async=False)
    packed = replace(whole, recipe=replace(whole.recipe, mean_document_len=1024))
    times = [step_parts(plan).slowest.compute.attention_forward_s for plan in (whole, packed)]
    assert times[1] < times[0] / 4
