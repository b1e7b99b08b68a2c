"""Which gradients are reduced together, against torch's own assignment and the engines' rules."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import shapes
from shardwise.catalog import read_cluster
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.step.gradient_buckets import FIRST_BUCKET_BYTES, BucketRule, bucketed_gradients
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext

EMBEDDING = 128_256 * 4096


def buckets_of(layout, *, stage=0, engine="fsdp2", model=None, **recipe):
    plan = Plan(
        model=model or shapes.llama_3_8b(4),
        cluster=read_cluster(f"{max(1, layout.world_size // 8)} x dgx-h100"),
        recipe=Recipe(**({"seq_len": 8192} | recipe)),
        layout=layout,
        engine=engine,
    )
    held = pipeline_stages(model=plan.model, layout=layout)[stage]
    return bucketed_gradients(StageContext(plan=plan, stage=held))


def sizes_of(*args, **kwargs):
    (gradients,) = buckets_of(*args, **kwargs)
    return [bucket.elements for bucket in gradients.buckets]


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=60),
    first=st.integers(1, 30),
    limit=st.integers(1, 60),
)
def test_buckets_are_those_that_torch_assigns(sizes, first, limit):
    """Tensors of one byte an element, so that limits are elements."""
    tensors = [torch.empty(size, dtype=torch.uint8, device="meta") for size in sizes]
    indices, _ = dist._compute_bucket_assignment_by_size(tensors, [first, limit])
    ours = list(BucketRule(num_first_elements=first, elements=limit, may_exceed=True).sizes(sizes))
    assert [(len(one), sum(sizes[index] for index in one)) for one in sorted(indices)] == ours


def test_the_first_bucket_is_as_small_as_torchs():
    assert FIRST_BUCKET_BYTES == dist._DEFAULT_FIRST_BUCKET_BYTES


def test_ddp_never_divides_a_matrix():
    """fp32: 25 MiB are 6,553,600 elements, the first bucket's 262,144. Small weights wait for the next matrix."""
    norm, matrix, keys_and_values = 4096, 4096 * 14336, 2 * 1024 * 4096
    block = [matrix + norm, matrix, matrix, 4096 * 4096 + norm, keys_and_values, 4096 * 4096]
    sizes = sizes_of(Layout(dp_shard=8, zero_stage=0))
    assert sizes == [EMBEDDING, *block, *block, *block, *block, EMBEDDING + norm]


@pytest.mark.parametrize(("engine", "zero_stage"), [("fsdp2", 0), ("megatron", 1), ("deepspeed", 2)])
def test_nothing_is_lost_between_buckets(engine, zero_stage):
    sizes = sizes_of(Layout(dp_shard=8, zero_stage=zero_stage), engine=engine)
    assert sum(sizes) == shapes.llama_3_8b(4).num_params


def test_deepspeed_closes_a_bucket_before_it_is_too_full():
    """5e8 elements: the head alone is more, a block and a half less."""
    sizes = sizes_of(Layout(dp_shard=8, zero_stage=2), engine="deepspeed", model=shapes.llama_3_8b())
    assert sizes[0] == sizes[-1] == EMBEDDING
    assert all(size <= 500_000_000 for size in sizes[1:-1])


@pytest.mark.parametrize(("overlap", "stage", "num_buckets"), [(True, 0, 5), (True, 1, 2), (False, 0, 2)])
def test_megatron_cuts_the_first_chunk_of_the_first_stage_only(overlap, stage, num_buckets):
    """40M elements: three buckets in one block (down, gate and up, attention) and the embedding; other chunks whole."""
    layout = Layout(dp_shard=8, zero_stage=1, pp=2, vpp=2, schedule="interleaved")
    sizes = sizes_of(layout, stage=stage, engine="megatron", global_batch_size=32, overlap_grad_reduce=overlap)
    assert len(sizes) == num_buckets


def test_buckets_are_complete_in_the_order_of_backward():
    (gradients,) = buckets_of(Layout(dp_shard=8, zero_stage=0))
    moments = [bucket.complete for bucket in gradients.buckets]
    assert moments == sorted(moments)
    assert (moments[0].index, moments[-1].index) == (0, 5)


def test_routed_gradients_have_buckets_of_their_own_where_their_groups_differ():
    layer = shapes.moe_layer(hidden_size=2048, expert_size=768, heads=32, kv_heads=4, experts=128, per_token=8)
    model = shapes.model(layer, num_layers=3, hidden_size=2048, vocab_size=1024)
    found = buckets_of(Layout(dp_shard=8, ep=4, zero_stage=1), engine="megatron", model=model)
    assert [one.name for one in found] == ["gradients", "expert gradients"]
    assert found[1].elements == 3 * 128 * 3 * 768 * 2048 // 4


def test_adapters_alone_fill_one_small_bucket():
    (gradients,) = buckets_of(Layout(dp_shard=8, zero_stage=0), adapter="lora", lora_rank=16)
    assert gradients.elements == 4 * 16 * (2 * 8192 + 2 * 5120)


def moments_of(*args, **kwargs):
    (gradients,) = buckets_of(*args, **kwargs)
    return [(bucket.complete.index, bucket.complete.fraction) for bucket in gradients.buckets]


def test_a_bucket_is_complete_with_its_last_gradient_in_the_order_of_backward():
    """Unit 0 is the head, then four blocks, then the embedding; the widest products fill a bucket each."""
    found = moments_of(Layout(dp_shard=8, zero_stage=0))
    assert found == sorted(found)
    assert [index for index, _ in found][:1] == [0]
    assert {index for index, _ in found} == {0, 1, 2, 3, 4, 5}
    assert found[-1] == (5, 1.0)
    down, widest = 4096 * 14_336, 218_112_000
    inside = [share for index, share in found if index == 1]
    assert inside[0] == pytest.approx(down / widest)
    assert all(0 < share <= 1 for share in inside)
