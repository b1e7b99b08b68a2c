"""Counts and bytes of collectives against what frameworks were counted to do."""

from collections import Counter
from dataclasses import replace

import pytest

import shapes
from shardwise.formulas.collective_volume import all_gather_factor, all_reduce_factor
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.step.collectives import stage_collectives
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.stage_context import StageContext

N = 8_030_261_248


def plan_of(layout, *, model=None, engine="fsdp2", **recipe):
    settings = {"seq_len": 2048} | recipe
    return Plan(
        model=model or shapes.llama_3_8b(),
        cluster=shapes.cluster(layout.world_size),
        recipe=Recipe(**settings),
        layout=layout,
        engine=engine,
    )


def calls_of(plan, stage=0):
    stages = pipeline_stages(model=plan.model, layout=plan.layout)
    return stage_collectives(StageContext(plan=plan, stage=stages[stage]))


def counts(plan, stage=0, *, axes=("dp_shard", "dp_replicate")):
    found = Counter()
    for call in calls_of(plan, stage):
        if call.axis in axes and call.name != "gradient norm":
            found[call.kind] += call.count
    return dict(found)


def sent_bytes(plan, *, axes=("dp_shard", "dp_replicate")):
    total = 0.0
    for call in calls_of(plan):
        if call.axis in axes and call.name != "gradient norm":
            factor = all_reduce_factor if call.kind == "all_reduce" else all_gather_factor
            total += call.count * call.num_bytes * factor(group_size=call.group_size)
    return total


@pytest.mark.parametrize(("num_layers", "gathers", "reductions"), [(4, 9, 5), (80, 161, 81)])
def test_fsdp2_gathers_twice_and_reduces_once_per_unit(num_layers, gathers, reductions):
    """Counted on torch 2.13: 9 and 5 for 4 blocks, 161 and 81 for 80; the root is not gathered again."""
    plan = plan_of(Layout(dp_shard=64), model=shapes.llama_3_8b(num_layers))
    assert counts(plan) == {"all_gather": gathers, "reduce_scatter": reductions}


def test_hybrid_sharding_adds_one_all_reduce_per_unit():
    """Counted on torch 2.13, 4 blocks on a 2 x 2 mesh: 9 + 5 + 5."""
    plan = plan_of(Layout(dp_replicate=2, dp_shard=2), model=shapes.llama_3_8b(4))
    assert counts(plan) == {"all_gather": 9, "reduce_scatter": 5, "all_reduce": 5}


def test_keeping_parameters_gathered_halves_the_gathers():
    """Counted on torch 2.13 with ``reshard_after_forward=False``: 5 and 5."""
    plan = plan_of(Layout(dp_shard=4, reshard_after_forward=False), model=shapes.llama_3_8b(4))
    assert counts(plan) == {"all_gather": 5, "reduce_scatter": 5}


def test_every_micro_batch_gathers_again():
    """Counted on torch 2.13 with 4 accumulated micro-batches: 36 all-gathers (reductions too unless synced once)."""
    plan = plan_of(Layout(dp_shard=4), model=shapes.llama_3_8b(4), global_batch_size=16)
    assert counts(plan) == {"all_gather": 36, "reduce_scatter": 20}


@pytest.mark.parametrize(("zero_stage", "times"), [(1, 1), (2, 4)])
def test_megatron_reduces_divided_gradients_in_every_micro_batch(zero_stage, times):
    """NVIDIA/Megatron-LM@00caa53af ``megatron_fsdp.py``: ``no_shard`` and ``optim`` alone delay their reductions."""
    plan = plan_of(Layout(dp_shard=8, zero_stage=zero_stage), engine="megatron", global_batch_size=32)
    once = plan_of(Layout(dp_shard=8, zero_stage=zero_stage), engine="megatron", global_batch_size=8)
    assert counts(plan)["reduce_scatter"] == times * counts(once)["reduce_scatter"] > 0


def test_pipelines_gather_and_reduce_once_per_step():
    plan = plan_of(Layout(dp_shard=4, pp=2), model=shapes.llama_3_8b(4), global_batch_size=32)
    assert plan.num_microbatches == 8
    assert counts(plan, stage=0) == {"all_gather": 3, "reduce_scatter": 3}


def test_fsdp_sends_eight_bytes_per_parameter():
    """bf16 gathers twice and fp32 reductions: 8N (n-1)/n; the root is gathered once."""
    root = 2 * 128256 * 4096 + 4096
    assert sent_bytes(plan_of(Layout(dp_shard=8))) == pytest.approx((8 * N - 2 * root) * 7 / 8)


def test_ddp_in_bf16_sends_four_bytes_per_parameter():
    sent = sent_bytes(plan_of(Layout(dp_shard=8, zero_stage=0), precision="bf16"))
    assert sent == pytest.approx(4 * N * 7 / 8, rel=1e-6)


def test_ddp_with_fp32_parameters_sends_twice_that():
    sent = sent_bytes(plan_of(Layout(dp_shard=8, zero_stage=0)))
    assert sent == pytest.approx(8 * N * 7 / 8, rel=1e-6)


def hidden_share(plan):
    data = [call for call in calls_of(plan) if call.axis == "dp_shard" and call.phase == "backward"]
    return sum(call.count for call in data if call.is_overlappable) / sum(call.count for call in data)


@pytest.mark.parametrize(("engine", "by_default"), [("megatron", True), ("deepspeed", False)])
def test_a_recipe_says_whether_buckets_are_reduced_under_backward(engine, by_default):
    """Megatron's --overlap-grad-reduce, DeepSpeed's overlap_comm; without it Megatron makes one bucket of all."""
    layout = Layout(dp_shard=8, zero_stage=1)
    plain = plan_of(layout, engine=engine)
    overlapped, exposed = (plan_of(layout, engine=engine, overlap_grad_reduce=asked) for asked in (True, False))
    assert (hidden_share(plain) > 0) is by_default
    assert hidden_share(overlapped) > 0.5
    assert hidden_share(exposed) == 0
    assert counts(exposed)["reduce_scatter"] == (1 if engine == "megatron" else counts(plain)["reduce_scatter"])
    assert sent_bytes(overlapped) == pytest.approx(sent_bytes(exposed), rel=1e-3)


def test_a_recipe_says_what_gradients_are_reduced_in():
    """Megatron's --grad-reduce-in-bf16: half the bytes of the reduction, the weights gathered as before."""
    layout = Layout(dp_shard=8, zero_stage=1)
    wide, narrow = (
        plan_of(layout, engine="megatron", reduce_dtype=asked, overlap_grad_reduce=False) for asked in (None, "bf16")
    )
    reduced = {call.kind: call.num_bytes for call in calls_of(wide) if call.axis == "dp_shard"}
    halved = {call.kind: call.num_bytes for call in calls_of(narrow) if call.axis == "dp_shard"}
    assert halved["reduce_scatter"] == pytest.approx(reduced["reduce_scatter"] / 2, rel=1e-6)
    assert halved["all_gather"] == reduced["all_gather"]


def test_ddp_reduces_in_buckets_once_per_step():
    """Six buckets a block of fp32 gradients and two tables, whatever is accumulated: matrices are never divided.

    Up, gate, down and output fill one each, key and value one together with the small weights, and so does query.
    """
    one = counts(plan_of(Layout(dp_shard=8, zero_stage=0)))
    many = counts(plan_of(Layout(dp_shard=8, zero_stage=0), global_batch_size=64))
    assert one == many == {"all_reduce": 194}


def test_the_embedding_is_the_last_bucket_and_waited_for():
    """128,256 rows of 4,096 fp32 gradients, behind those of the first norm: nothing is left to compute then."""
    calls = [call for call in calls_of(plan_of(Layout(dp_shard=8, zero_stage=0))) if call.kind == "all_reduce"]
    assert [call.num_bytes for call in calls if not call.is_overlappable and call.phase == "backward"] == [
        2_101_362_688
    ]


def test_gradients_that_do_not_overlap_are_reduced_after_the_backward_pass():
    layout = Layout(dp_shard=8, zero_stage=1)
    calls = calls_of(plan_of(layout, engine="megatron", global_batch_size=64, overlap_grad_reduce=False))
    assert not any(call.is_overlappable for call in calls)
    assert {call.phase for call in calls if call.kind == "all_gather"} == {"optimizer"}


def test_deepspeeds_pipeline_overlaps_no_reduction():
    plan = plan_of(Layout(dp_shard=4, pp=2, zero_stage=1), engine="deepspeed", global_batch_size=32)
    assert not any(call.is_overlappable for call in calls_of(plan) if call.axis == "dp_shard")


@pytest.mark.parametrize(("defer", "reductions"), [(None, 20), (True, 5)])
def test_deferred_accumulation_reduces_once_and_gathers_every_time(defer, reductions):
    """Four micro-batches of a model of four blocks: nine gathers each."""
    layout = Layout(dp_shard=8, defer_grad_reduce=defer)
    plan = plan_of(layout, model=shapes.llama_3_8b(4), global_batch_size=32)
    assert counts(plan) == {"all_gather": 36, "reduce_scatter": reductions}


def test_a_smaller_group_gathers_for_backward():
    layout = Layout(dp_shard=16, reshard_size=8)
    gathers = [call for call in calls_of(plan_of(layout)) if call.kind == "all_gather"]
    assert {(call.phase, call.group_size) for call in gathers} == {("forward", 16), ("backward", 8)}


def test_megatrons_distributed_optimizer_sends_six_bytes_per_parameter():
    """fp32 gradients scattered, bf16 weights gathered, once per step."""
    plan = plan_of(Layout(dp_shard=8, zero_stage=1), engine="megatron", global_batch_size=64)
    assert sent_bytes(plan) == pytest.approx(6 * N * 7 / 8, rel=1e-6)
    assert {call.phase for call in calls_of(plan) if call.kind == "all_gather"} == {"forward"}


def test_deepspeed_stage_2_reduces_every_micro_batch_and_stage_1_once():
    """Buckets of 5e8 elements of 2 bytes; under ZeRO the accumulator has the type of the model (`get_data_types`)."""
    stages = {
        stage: counts(plan_of(Layout(dp_shard=8, zero_stage=stage), engine="deepspeed", global_batch_size=32))
        for stage in (1, 2)
    }
    assert stages[2]["reduce_scatter"] == 4 * -(-2 * N // 10**9)
    assert stages[1]["reduce_scatter"] == -(-2 * N // 10**9)


def test_torchs_zero_1_broadcasts_what_each_rank_updated():
    plan = plan_of(Layout(dp_shard=8, zero_stage=1))
    broadcast = next(call for call in calls_of(plan) if call.kind == "broadcast")
    assert broadcast.count == 8
    assert broadcast.count * broadcast.num_bytes == pytest.approx(4 * N, rel=1e-6)


def test_lora_reduces_adapters_only():
    plan = plan_of(Layout(dp_shard=8), adapter="lora", lora_rank=16)
    reduced = sum(call.count * call.num_bytes for call in calls_of(plan) if call.kind == "reduce_scatter")
    assert reduced == 4 * 32 * 16 * (2 * 8192 + 2 * 5120)


def test_one_rank_communicates_nothing():
    assert calls_of(plan_of(Layout())) == ()


def test_tensor_parallelism_needs_two_all_reduces_each_way_per_block():
    """Megatron: 4 per block, one for the embedding, one for the head's input gradient, three scalars of the loss."""
    plan = plan_of(Layout(tp=4, zero_stage=0), model=shapes.llama_3_8b(4))
    large = [call for call in calls_of(plan) if call.axis == "tp" and call.num_bytes == 2048 * 4096 * 2]
    assert sum(call.count for call in large) == 4 * 4 + 2


def test_sequence_parallelism_counts_as_on_torch():
    """Counted on torch 2.13 for 4 blocks: 18 reduce-scatters, and 19 all-gathers with the output gathered whole."""
    plan = plan_of(Layout(tp=4, zero_stage=0, sequence_parallel=True), model=shapes.llama_3_8b(4))
    found = Counter()
    for call in calls_of(plan):
        if call.num_bytes == 2048 * 4096 * 2:
            found[call.kind] += call.count
    assert found == {"reduce_scatter": 18, "all_gather": 18}


def test_megatron_gathers_once_more_for_the_weight_gradient():
    layout = Layout(tp=4, zero_stage=0, sequence_parallel=True)
    model = shapes.llama_3_8b(4)
    found = {
        engine: sum(
            call.count
            for call in calls_of(plan_of(layout, model=model, engine=engine))
            if call.kind == "all_gather" and call.phase == "backward" and call.name.startswith("sequence")
        )
        for engine in ("fsdp2", "megatron")
    }
    assert found == {"fsdp2": 8, "megatron": 16}


def test_full_recompute_repeats_the_forwards_communication():
    """Both sums of a block under Megatron; torch stops before the second, which follows the last product."""
    layout = Layout(tp=4, zero_stage=0)
    for engine, sums in (("megatron", 2), ("fsdp2", 1)):
        again = [
            call for call in calls_of(plan_of(layout, engine=engine, recompute="full")) if call.phase == "recompute"
        ]
        assert sum(call.count for call in again) == sums * 32
    megatron = plan_of(layout, engine="megatron", recompute="selective")
    assert not [call for call in calls_of(megatron) if call.phase == "recompute"]


@pytest.mark.parametrize(("is_compiled", "sums"), [(False, 2), (True, 1)])
def test_eager_dropout_saves_its_mask_behind_the_last_sum_which_is_then_repeated(is_compiled, sums):
    """torch stopped before the product as far as sums went, and behind it as far as operations went."""
    model = replace(shapes.llama_3_8b(2), hidden_dropout_fraction=0.1)
    plan = plan_of(Layout(tp=4, zero_stage=0), engine="fsdp2", model=model, recompute="full", compile=is_compiled)
    assert sum(call.count for call in calls_of(plan) if call.phase == "recompute") == sums * 2


def test_selective_recompute_of_operations_gathers_again_and_keeps_scattered_sums():
    """torchtitan ``parallelize_llama.py``, ``_save_list``: products, attention, ``reduce_scatter_tensor``."""
    layout = Layout(tp=4, zero_stage=0, sequence_parallel=True)
    plan = plan_of(layout, engine="torchtitan", recompute="selective")
    again = {call.kind: call.count for call in calls_of(plan) if call.phase == "recompute"}
    assert again == {"all_gather": 2 * 32}


def test_ring_attention_passes_keys_and_values_cp_minus_one_times():
    plan = plan_of(Layout(cp=4, zero_stage=0), engine="megatron", model=shapes.llama_3_8b(2))
    ring = {call.phase: call for call in calls_of(plan) if call.kind == "send_recv"}
    assert ring["forward"].count == 2 * 3
    assert ring["forward"].num_bytes == 512 * 8 * 256 * 2
    assert ring["backward"].num_bytes == 2 * ring["forward"].num_bytes


def test_torchs_context_parallelism_gathers_keys_and_values_and_passes_gradients_on():
    """torch ``_templated_ring_attention_backward``: a hop after each of four pieces, the last of which is home."""
    plan = plan_of(Layout(cp=4, zero_stage=0), model=shapes.llama_3_8b(2))
    found = counts(plan, axes=("cp",))
    assert found == {"all_gather": 4, "send_recv": 2 * 4}


def test_ulysses_exchanges_heads_for_tokens():
    plan = plan_of(Layout(cp=4, zero_stage=0), engine="deepspeed", model=shapes.llama_3_8b(2))
    assert counts(plan, axes=("cp",)) == {"all_to_all": 2 * 4}


def moe_model():
    layer = shapes.moe_layer(hidden_size=2048, expert_size=768, heads=32, kv_heads=4, experts=128, per_token=8)
    return shapes.model(layer, num_layers=3, hidden_size=2048, vocab_size=1024)


def row_exchanges(plan):
    """Calls that carry rows to experts and back; how many rows there are travels apart."""
    return [call for call in calls_of(plan) if call.axis == "ep" and call.name != "expert counts"]


def test_experts_dispatch_and_combine_in_both_passes():
    calls = row_exchanges(plan_of(Layout(dp_shard=8, ep=4), model=moe_model(), routing_imbalance_ratio=1.0))
    assert sum(call.count for call in calls) == 3 * 4
    assert {call.num_bytes for call in calls} == {2048 * 8 * 2048 * 2}


@pytest.mark.parametrize("exchange", ["alltoall", "deepep"])
def test_only_nccls_exchange_tells_counts_first_and_sends_every_copy(exchange):
    """128 experts, 8 bytes each; DeepEP's kernels send a token once to every host and learn the counts on the way."""
    layout = Layout(dp_shard=8, ep=4, expert_exchange=exchange)
    calls = [call for call in calls_of(plan_of(layout, model=moe_model())) if call.axis == "ep"]
    counts = [call.num_bytes for call in calls if call.name == "expert counts"]
    assert counts == ([128 * 8] if exchange == "alltoall" else [])
    chosen = {call.sent_once and call.sent_once.num_experts_per_tok for call in calls if call.name != "expert counts"}
    assert chosen == ({None} if exchange == "alltoall" else {8})


def test_the_fullest_rank_receives_more_token_copies():
    plan = plan_of(Layout(dp_shard=8, ep=4), model=moe_model(), routing_imbalance_ratio=1.25)
    assert {call.num_bytes for call in row_exchanges(plan)} == {1.25 * 2048 * 8 * 2048 * 2}


def test_routed_weights_are_gathered_over_what_expert_parallelism_leaves():
    calls = calls_of(plan_of(Layout(dp_shard=8, ep=4), model=moe_model()))
    groups = {call.name: (call.group_size, call.stride) for call in calls if call.kind == "reduce_scatter"}
    assert groups["reduce-scatter blocks[0] experts"] == (2, 4)
    assert groups["reduce-scatter blocks[0]"] == (8, 1)


def test_pipeline_sends_one_boundary_each_way_per_micro_batch():
    plan = plan_of(Layout(pp=4, zero_stage=0), global_batch_size=8)
    sends = [
        Counter({call.phase: call.count for call in calls_of(plan, stage) if call.kind == "send_recv"})
        for stage in range(4)
    ]
    assert [dict(found) for found in sends] == [
        {"forward": 8},
        {"forward": 8, "backward": 8},
        {"forward": 8, "backward": 8},
        {"backward": 8},
    ]


def test_interleaving_multiplies_the_messages_and_a_v_turns_without_one():
    interleaved = plan_of(Layout(pp=4, vpp=2, schedule="interleaved", zero_stage=0), global_batch_size=8)
    v_shaped = plan_of(Layout(pp=4, schedule="zbv", zero_stage=0), global_batch_size=8)
    last_of_pipeline = {call.phase: call.count for call in calls_of(interleaved, 3) if call.kind == "send_recv"}
    turn = {call.phase: call.count for call in calls_of(v_shaped, 3) if call.kind == "send_recv"}
    assert last_of_pipeline == {"forward": 8, "backward": 16}
    assert turn == {"forward": 8, "backward": 8}


def test_a_table_tied_over_two_stages_is_reduced_between_them():
    tied = shapes.model(shapes.llama_3_8b().layers[0], num_layers=4, hidden_size=4096, vocab_size=1024, tied=True)
    plan = plan_of(Layout(pp=2, zero_stage=0), model=tied)
    table = next(call for call in calls_of(plan) if call.name == "tied embedding gradient")
    assert (table.group_size, table.num_bytes) == (2, 4 * 1024 * 4096)


def test_strides_follow_tp_cp_shard_replicate_pp():
    layout = Layout(tp=2, cp=3, dp_shard=5, dp_replicate=7, pp=11, zero_stage=3)
    plan = plan_of(layout, model=shapes.llama_3_8b(11))
    strides = {(call.axis, call.kind): call.stride for call in calls_of(plan)}
    assert strides["tp", "all_reduce"] == 1
    assert strides["cp", "all_gather"] == 2
    assert strides["dp_shard", "all_gather"] == 2
    assert strides["dp_replicate", "all_reduce"] == 2 * 3 * 5
    assert strides["pp", "send_recv"] == 2 * 3 * 5 * 7


def test_what_cannot_be_hidden_is_one_call_per_round():
    plan = plan_of(Layout(dp_shard=8), global_batch_size=24)
    exposed = [call for call in calls_of(plan) if not call.is_overlappable and call.name != "gradient norm"]
    assert [(call.name, call.count, call.rounds) for call in exposed] == [
        ("all-gather embedding and head", 3, 3),
        ("reduce-scatter embedding and head", 3, 3),
    ]


def test_blocks_that_differ_in_their_window_only_are_one_entry():
    layer = shapes.llama_3_8b().layers[0]
    windowed = replace(layer, mixer=replace(layer.mixer, sliding_window=1024))
    model = replace(shapes.llama_3_8b(), layers=(layer, windowed) * 16)
    plan = plan_of(Layout(dp_shard=8), model=model)
    assert counts(plan) == {"all_gather": 65, "reduce_scatter": 33}
    assert len({call.name for call in calls_of(plan) if call.kind == "reduce_scatter"}) == 2


def test_dualpipe_hides_the_exchange_of_experts():
    layouts = (Layout(dp_shard=8, ep=4, pp=2, schedule=schedule) for schedule in ("1f1b", "dualpipev"))
    layer = moe_model().layers[0]
    model = shapes.model(layer, num_layers=4, hidden_size=2048, vocab_size=1024)
    hidden = [{call.is_overlappable for call in row_exchanges(plan_of(layout, model=model))} for layout in layouts]
    assert hidden == [{False}, {True}]


@pytest.mark.parametrize(("ranks", "owners"), [(8, 8), (256, 226), (1024, 226)])
def test_owners_of_whole_tensors_broadcast_them_one_after_the_other(ranks, owners):
    """InternEvo's ZeRO 1 of 32 blocks of seven matrices and two tables: further ranks own nothing to send."""
    layout = Layout(dp_shard=ranks, zero_stage=1)
    sent, gathered = (plan_of(layout, engine="deepspeed", broadcast_weights=asked) for asked in (True, None))
    (turn,) = (call for call in calls_of(sent) if call.kind == "broadcast")
    assert (turn.count, turn.phase, turn.is_overlappable) == (owners, "optimizer", False)
    assert turn.count * turn.num_bytes == pytest.approx(2 * N, rel=1e-6)
    assert counts(gathered)["all_gather"] > 0 == counts(sent).get("all_gather", 0)


@pytest.mark.parametrize(
    ("engine", "layout"),
    [
        ("megatron", Layout(dp_shard=8, zero_stage=1)),
        ("fsdp2", Layout(dp_shard=8)),
        ("fsdp2", Layout(dp_replicate=8, zero_stage=0)),
        ("megatron", Layout(dp_shard=2, pp=4, vpp=2, schedule="interleaved", zero_stage=1)),
    ],
)
def test_a_host_that_waits_for_every_kernel_hides_no_collective(engine, layout):
    settings = {"engine": engine, "global_batch_size": 16 * layout.dp_shard * layout.dp_replicate}
    free, waiting = (plan_of(layout, blocking_launches=asked, **settings) for asked in (False, True))
    assert any(call.is_overlappable for call in calls_of(free))
    assert not any(call.is_overlappable for call in calls_of(waiting))
    assert counts(free) == counts(waiting)


@pytest.mark.parametrize(
    ("engine", "sequence_parallel", "parts", "gathers"),
    [("deepspeed", False, 4, 1), ("megatron", False, 1, 0), ("megatron", True, 4, 0), ("fsdp2", False, 1, 0)],
)
def test_tensor_parallel_ranks_of_deepspeed_each_send_a_part_of_a_message(engine, sequence_parallel, parts, gathers):
    """2,048 tokens of 4,096 in 16 bits between two stages: 16 MiB whole, gathered again where parts of it arrive."""
    layout = Layout(tp=4, pp=2, zero_stage=0, sequence_parallel=sequence_parallel)
    plan = plan_of(layout, engine=engine, global_batch_size=8, compile=False)
    calls = [call for call in calls_of(plan) if call.name.startswith("pipeline forward")]
    messages = [call for call in calls if call.kind == "send_recv"]
    joined = [call for call in calls if call.kind == "all_gather"]
    assert [(call.num_bytes, call.count) for call in messages] == [(2**24 // parts, 8)]
    assert [(call.num_bytes, call.count, call.group_size) for call in joined] == [(2**24, 8, 4)] * gathers


@pytest.mark.parametrize(
    ("engine", "layout"),
    [
        ("fsdp2", Layout(dp_shard=8, zero_stage=3)),
        ("native", Layout(dp_shard=8, zero_stage=3)),
        ("megatron", Layout(dp_shard=4, cp=2, pp=2, vpp=2, schedule="interleaved", zero_stage=1)),
        ("torchtitan", Layout(dp_shard=2, tp=4, sequence_parallel=True, async_tensor_parallel=True)),
    ],
)
def test_a_host_that_waits_for_every_kernel_hides_no_call_and_makes_the_same_ones(engine, layout):
    free = calls_of(plan_of(layout, engine=engine))
    waiting = calls_of(plan_of(layout, engine=engine, blocking_launches=True))
    assert any(call.is_overlappable for call in free)
    assert waiting == tuple(replace(call, is_overlappable=False) for call in free)
