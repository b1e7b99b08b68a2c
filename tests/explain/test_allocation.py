"""Sizes out of real threads, inverted to the tensor they were."""

from dataclasses import replace

import pytest

from shardwise.explain.allocation import cuda_request_bytes, match_plan, match_shapes
from shardwise.explain.oom_text import parse_size
from shardwise.explain.plan_tensors import plan_tensors
from shardwise.layout import Layout
from shardwise.recipe import Recipe
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_inventory import stage_inventory
from shardwise.units import KIB, MIB


@pytest.mark.parametrize(
    ("num_bytes", "requested"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (2**35, 2**35),
    ],
)
def test_the_allocator_asks_in_its_own_steps(num_bytes, requested):
    assert cuda_request_bytes(num_bytes) == requested


def test_the_32_gib_request_of_colossalai_4537_is_the_attention_scores(make_plan, llama_7b):
    """16 x 32 heads x 4096 x 4096 x 4 B = 32.00 GiB exactly; the fix is fused attention."""
    plan = make_plan(model=llama_7b, recipe=Recipe(seq_len=4096, micro_batch_size=16, attention="eager"))
    best = match_plan(parse_size("32.00 GiB"), plan=plan)[0]
    assert best.name == "attention scores, fp32"
    assert best.num_bytes == 16 * 32 * 4096 * 4096 * 4 == 34_359_738_368
    assert "flash" in best.fix


def test_without_a_plan_the_32_gib_request_is_read_as_scores_and_says_how_many_heads():
    matches = match_shapes(parse_size("32.00 GiB"))
    scores = next(match for match in matches if match.name == "attention scores, fp32")
    assert "512 x 4096 x 4096 x 4 B" in scores.expression


def test_gathered_and_vocab_parallel_logits_are_told_apart(make_plan, llama_8b):
    """areal 664: 4 x 4096 x 128,000 x 2 B is 4.19 GB gathered and 0.52 GB divided over tp=8 (Llama 3: 128,256)."""
    plan = make_plan(recipe=Recipe(seq_len=4096, micro_batch_size=4), layout=Layout(tp=8))
    gathered = match_plan(parse_size("3.91 GiB"), plan=plan)[0]
    divided = match_plan(parse_size("502.00 MiB"), plan=plan)[0]
    assert (gathered.name, gathered.kind) == ("logits gathered over tp, bf16", "unmade")
    assert gathered.num_bytes == 4 * 4096 * 128256 * 2
    assert (divided.name, divided.num_bytes) == ("logits divided over tp, bf16", 4 * 4096 * 16032 * 2)


def test_fp32_logits_of_one_qwen_sequence_are_recognised_without_a_plan():
    """s1 issue 13: 20,000 tokens x 152,064 x 4 B = 12.17 GB; here 20,480 tokens as a round length."""
    best = match_shapes(parse_size(str(20480 * 152064 * 4)))[0]
    assert best.expression == "20480 tokens x vocab_size 152064 x 4 B"


def test_a_size_of_twice_the_batch_is_read_as_a_multiple(make_plan):
    plan = make_plan(recipe=Recipe(seq_len=8192, micro_batch_size=1))
    best = match_plan(parse_size("11.74 GiB"), plan=plan)[0]
    assert best.kind == "multiple"
    assert best.name.startswith("3 x logits, fp32")


def test_the_rounding_of_the_allocator_is_undone(make_plan):
    """525,340,672 x 4 B = 2004.02 MiB is asked for as 2006.00 MiB."""
    plan = make_plan(recipe=Recipe(seq_len=2048), layout=Layout(dp_shard=7, zero_stage=3))
    root_params = 2 * 128256 * 4096 + 4096
    printed = f"{cuda_request_bytes(-(-root_params // 7) * 7 * 2) / MIB:.2f} MiB"
    names = [match.name for match in match_plan(parse_size(printed), plan=plan)]
    assert "gathered parameters of embedding, final norm and head, bf16" in names


def test_a_size_of_nothing_in_the_plan_matches_nothing_exactly(make_plan):
    plan = make_plan(recipe=Recipe(seq_len=8192))
    assert [match for match in match_plan(parse_size("12345678901"), plan=plan) if match.kind == "exact"] == []


def test_small_requests_are_not_guessed_at():
    assert match_shapes(parse_size("20.00 MiB")) == ()
    assert match_shapes(parse_size(str(20 * KIB))) == ()


def test_deepspeed_buckets_are_known_by_their_size(make_plan):
    """5e8 fp16 elements are 953.67 MiB, asked for as 954."""
    plan = replace(make_plan(recipe=Recipe(seq_len=2048)), engine="deepspeed")
    names = [match.name for match in match_plan(parse_size("954.00 MiB"), plan=plan)]
    assert "bucket of gradients" in names


@pytest.mark.parametrize(
    ("engine", "layout", "num_bytes", "fix"),
    [
        ("accelerate", Layout(dp_replicate=8, zero_stage=0), None, "lower bucket_cap_mb, or set"),
        ("deepspeed", Layout(dp_shard=8, zero_stage=2), 500_000_000 * 2, "lower reduce_bucket_size and allgather"),
    ],
)
def test_a_bucket_is_the_engines_own_with_its_own_option(make_plan, engine, layout, num_bytes, fix):
    """torch fills a bucket of 25 MiB with whole gradients; DeepSpeed's is 500,000,000 elements of two bytes."""
    tensors = plan_tensors(replace(make_plan(layout=layout, recipe=Recipe(seq_len=1024)), engine=engine))
    buckets = [tensor for tensor in tensors if tensor.group == "bucket"]
    assert buckets
    assert all(tensor.fix.startswith(fix) for tensor in buckets)
    if num_bytes is not None:
        assert [tensor.num_bytes for tensor in buckets] == [num_bytes]


@pytest.mark.parametrize("engine", ["megatron", "torchtitan"])
def test_an_engine_without_buckets_of_their_own_is_told_of_none(make_plan, engine):
    """Megatron's buckets are parts of one buffer, and FSDP reduces units."""
    sharded = Layout(dp_shard=8, zero_stage=1 if engine == "megatron" else 3)
    tensors = plan_tensors(replace(make_plan(layout=sharded, recipe=Recipe(seq_len=1024)), engine=engine))
    assert [tensor for tensor in tensors if tensor.group == "bucket"] == []


def test_a_unit_is_as_large_as_in_the_inventory(make_plan):
    """What FSDP gathers of a block is what the inventory has as one."""
    plan = replace(make_plan(layout=Layout(dp_shard=8), recipe=Recipe(seq_len=1024)), engine="torchtitan")
    (stage,) = pipeline_stages(model=plan.model, layout=plan.layout)
    held = {tensor.name: tensor.num_bytes for tensor in stage_inventory(plan, stage).tensors}
    block = next(one for one in plan_tensors(plan) if one.name == "gathered parameters of one block (32 alike), bf16")
    assert held["gathered last block"] == block.num_bytes
