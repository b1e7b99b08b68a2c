"""The computations of a rank add up to the closed forms, and divide as the layout says."""

from dataclasses import replace

import pytest

import shapes
from shardwise.layout import Layout
from shardwise.model import AttentionSpec
from shardwise.plan import Plan
from shardwise.predict.model_flop import matmul_params, model_flop_per_token
from shardwise.recipe import Recipe
from shardwise.step.attention_operations import attended_pairs
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.operations import stage_operations
from shardwise.step.stage_context import StageContext
from shardwise.step.step_operations import trained_elements

LLAMA = shapes.llama_3_8b()


def plan_of(model=LLAMA, *, engine="native", layout=None, gpus=None, **recipe):
    layout = layout or Layout(zero_stage=0)
    settings = {"seq_len": 8192, "micro_batch_size": 1, "recompute": "none"} | recipe
    return Plan(
        model=model,
        cluster=shapes.cluster(gpus or layout.world_size),
        recipe=Recipe(**settings),
        layout=layout,
        engine=engine,
    )


def operations_of(plan):
    return [
        operation
        for stage in pipeline_stages(model=plan.model, layout=plan.layout)
        for operation in stage_operations(StageContext(plan=plan, stage=stage))
    ]


def flop(plan, *phases, kinds=("matmul", "grouped_matmul", "attention")):
    """Model FLOP: flash attention's recomputation inside its backward is not counted (2.5 forwards become 2)."""
    total = 0.0
    for operation in operations_of(plan):
        if operation.kind in kinds and operation.phase in phases:
            is_flash_backward = operation.kind == "attention" and operation.phase == "backward"
            total += operation.count * operation.flop * (0.8 if is_flash_backward else 1.0)
    return total


def per_token(plan):
    """GFLOP of one token, forward and backward."""
    tokens = plan.recipe.seq_len * plan.recipe.micro_batch_size * plan.num_microbatches
    return flop(plan, "forward", "backward") * plan.layout.tp * plan.layout.cp / tokens / 1e9


def test_llama_3_8b_inventory_gives_the_published_51_5_gflop_per_token():
    """FORMULAS of the field: 57.9 / 51.5 / 48.2 GFLOP at 8,192 tokens (full attention / causal / 6N)."""
    plan = plan_of()
    assert per_token(plan) == pytest.approx(51.5, abs=0.05)
    attention = flop(plan, "forward", "backward", kinds=("attention",)) / 8192 / 1e9
    assert per_token(plan) + attention == pytest.approx(57.9, abs=0.05)
    table = 6 * 128256 * 4096 / 1e9
    assert per_token(plan) - attention + table == pytest.approx(48.2, abs=0.05)


def test_the_inventory_is_the_closed_form_up_to_the_norms():
    plan = plan_of()
    norms = 6 * (32 * 2 + 1) * 4096
    assert per_token(plan) * 1e9 == pytest.approx(model_flop_per_token(LLAMA, seq_len=8192) - norms, rel=1e-12)
    assert matmul_params(LLAMA) == 8_030_261_248 - 128256 * 4096


@pytest.mark.parametrize(
    "layout",
    [
        Layout(tp=2, zero_stage=0),
        Layout(tp=8, zero_stage=0, sequence_parallel=True),
        Layout(cp=4, zero_stage=0),
        Layout(pp=4, zero_stage=0),
        Layout(pp=2, vpp=2, schedule="interleaved", tp=2, cp=2, zero_stage=0),
        Layout(dp_shard=8),
    ],
    ids=lambda layout: f"tp{layout.tp}cp{layout.cp}pp{layout.pp}dp{layout.dp_shard}",
)
def test_no_layout_changes_the_flop_of_a_token(layout):
    assert per_token(plan_of(layout=layout)) == pytest.approx(per_token(plan_of()), rel=1e-9)


def test_every_matrix_is_multiplied_three_times():
    products = {o.name: o for o in operations_of(plan_of()) if o.kind == "matmul"}
    for name in ("self_attn.q_proj", "mlp.down_proj", "head"):
        assert products[name].flop == products[f"{name}.dgrad"].flop == products[f"{name}.wgrad"].flop
    q_proj, gradient = products["self_attn.q_proj"], products["self_attn.q_proj.wgrad"]
    assert (q_proj.m, q_proj.n, q_proj.k) == (8192, 4096, 4096)
    assert (gradient.m, gradient.n, gradient.k) == (4096, 4096, 8192)
    down, transposed = products["mlp.down_proj"], products["mlp.down_proj.dgrad"]
    assert (down.n, down.k) == (4096, 14336)
    assert (transposed.n, transposed.k) == (14336, 4096)


def test_tensor_parallelism_divides_columns_or_inner_length():
    products = {o.name: o for o in operations_of(plan_of(layout=Layout(tp=8, zero_stage=0))) if o.kind == "matmul"}
    assert (products["mlp.gate_proj"].n, products["mlp.gate_proj"].k) == (14336 // 8, 4096)
    assert (products["mlp.down_proj"].n, products["mlp.down_proj"].k) == (4096, 14336 // 8)
    assert products["head"].n == 128256 // 8


def test_key_heads_are_duplicated_beyond_their_number():
    products = {o.name: o for o in operations_of(plan_of(layout=Layout(tp=16, zero_stage=0))) if o.kind == "matmul"}
    assert products["self_attn.k_proj"].n == 128


def test_counts_are_blocks_times_micro_batches():
    plan = plan_of(layout=Layout(dp_shard=2), global_batch_size=6)
    counts = {o.name: o.count for o in operations_of(plan)}
    assert counts["self_attn.q_proj"] == 32 * 3
    assert counts["head"] == 3
    assert counts["update"] == 1


def test_only_some_layers_are_recomputed_when_asked():
    assert flop(plan_of(recompute="full", recompute_layers=8), "recompute") == pytest.approx(
        flop(plan_of(recompute="full"), "recompute") / 4, rel=1e-12
    )


def test_selective_recompute_follows_the_engine():
    """Megatron repeats the attention core, torchtitan's policy every second product and no attention."""
    core = [o for o in operations_of(plan_of(recompute="selective", engine="megatron")) if o.phase == "recompute"]
    assert [o.kind for o in core] == ["attention"]
    policy = [o for o in operations_of(plan_of(recompute="selective", engine="torchtitan")) if o.phase == "recompute"]
    assert [o.name for o in policy if o.kind == "matmul"] == ["self_attn.k_proj", "self_attn.o_proj", "mlp.up_proj"]
    assert not [o for o in policy if o.kind == "attention"]


def test_frozen_weights_have_no_weight_gradient_and_cost_two_thirds():
    plain, lora = plan_of(seq_len=512), plan_of(seq_len=512, adapter="lora", lora_rank=1)
    names = [o.name for o in operations_of(lora)]
    assert "self_attn.q_proj.wgrad" not in names
    assert "self_attn.q_proj.dgrad" in names
    assert "self_attn.q_proj.weight.lora_A.wgrad" in names
    assert "head.wgrad" not in names
    assert flop(lora, "forward", "backward", kinds=("matmul",)) == pytest.approx(
        flop(plain, "forward", "backward", kinds=("matmul",)) * 2 / 3, rel=1e-3
    )


def test_qlora_expands_its_weights_in_both_passes():
    names = [o.name for o in operations_of(plan_of(adapter="qlora"))]
    assert {"dequantise", "dequantise.backward"} <= set(names)


@pytest.mark.parametrize(
    ("is_causal", "window", "expected"),
    [(True, None, 49 / 2), (False, None, 49), (True, 3, 3 * 7 - 4.5), (True, 9, 49 / 2), (False, 7, 49)],
)
def test_pairs_one_head_attends_to(is_causal, window, expected):
    assert attended_pairs(seq_len=7, is_causal=is_causal, sliding_window=window) == expected


def test_a_window_cuts_attention_and_nothing_else():
    layer = LLAMA.layers[0]
    windowed = replace(layer, mixer=replace(layer.mixer, sliding_window=1024))
    model = replace(LLAMA, layers=(windowed,) * 32)
    attention = flop(plan_of(model), "forward", kinds=("attention",))
    full = flop(plan_of(), "forward", kinds=("attention",))
    assert attention / full == pytest.approx((1024 * 8192 - 1024**2 / 2) / (8192**2 / 2))
    assert flop(plan_of(model), "forward", kinds=("matmul",)) == flop(plan_of(), "forward", kinds=("matmul",))
    assert [o.n for o in operations_of(plan_of(model)) if o.name == "attention.core"] == [1024]


def test_alternating_blocks_are_listed_once_each():
    layer = LLAMA.layers[0]
    windowed = replace(layer, mixer=replace(layer.mixer, sliding_window=1024))
    model = replace(LLAMA, layers=(layer, windowed) * 16)
    queries = [o for o in operations_of(plan_of(model)) if o.name == "self_attn.q_proj"]
    assert [o.count for o in queries] == [16, 16]


def test_eager_attention_is_bound_by_its_scores():
    """42 bytes per score in 16 bits, half of them counted: both passes write the whole square."""
    eager = [o for o in operations_of(plan_of(attention="eager")) if o.kind == "attention"]
    flash = [o for o in operations_of(plan_of()) if o.kind == "attention"]
    scores = 32 * 8192**2
    assert sum(o.num_bytes for o in eager) == 42 * scores
    assert sum(o.num_bytes for o in flash) < sum(o.num_bytes for o in eager) / 50


def test_routed_experts_compute_what_their_tokens_need():
    layer = shapes.moe_layer(hidden_size=2048, expert_size=768, heads=32, kv_heads=4, experts=128, per_token=8)
    model = shapes.model(layer, num_layers=3, hidden_size=2048, vocab_size=1024)
    whole = flop(plan_of(model, seq_len=1024), "forward", kinds=("grouped_matmul",))
    assert whole == 3 * 2 * 1024 * 8 * 3 * 2048 * 768
    divided = plan_of(model, seq_len=1024, layout=Layout(dp_shard=8, ep=8))
    assert flop(divided, "forward", kinds=("grouped_matmul",)) == whole
    experts = next(o for o in operations_of(divided) if o.name == "mlp.experts.up_proj")
    assert (experts.m, experts.n, experts.k) == (1024 * 8 * 8 // 128, 768, 2048)
    router = next(o for o in operations_of(divided) if o.name == "mlp.gate")
    assert router.kind == "matmul"
    assert router.n == 128


def test_uneven_routing_slows_products_of_experts_and_nothing_else():
    layer = shapes.moe_layer(hidden_size=2048, expert_size=768, heads=32, kv_heads=4, experts=128, per_token=8)
    model = shapes.model(layer, num_layers=3, hidden_size=2048, vocab_size=1024)

    def slowdowns(**layout):
        plan = plan_of(model, seq_len=1024, layout=Layout(**layout), routing_imbalance_ratio=1.5)
        found = {(o.kind == "grouped_matmul", o.slowdown_ratio) for o in operations_of(plan) if o.kind != "attention"}
        return sorted(found)

    assert slowdowns(dp_shard=8, ep=8) == [(False, 1.0), (True, 1.5)]
    assert slowdowns(dp_shard=8) == [(False, 1.0), (True, 1.09)]


def test_the_inventory_of_experts_is_the_closed_form_of_active_parameters():
    layer = shapes.moe_layer(hidden_size=2048, expert_size=768, heads=32, kv_heads=4, experts=128, per_token=8)
    model = shapes.model(layer, num_layers=3, hidden_size=2048, vocab_size=1024)
    norms = 6 * (3 * 2 + 1) * 2048
    closed = model_flop_per_token(model, seq_len=1024) - norms
    assert per_token(plan_of(model, seq_len=1024)) * 1e9 == pytest.approx(closed, rel=1e-9)


def test_a_tied_head_is_multiplied_and_its_table_counts_once():
    tied = shapes.model(LLAMA.layers[0], num_layers=2, hidden_size=4096, vocab_size=1024, tied=True)
    heads = [o for o in operations_of(plan_of(tied)) if o.name == "head"]
    assert [(o.n, o.k) for o in heads] == [(1024, 4096)]
    assert matmul_params(tied) == tied.num_params


def test_adam_reads_and_writes_28_bytes_per_fp32_parameter():
    update = next(o for o in operations_of(plan_of(layout=Layout(dp_shard=8))) if o.name == "update")
    assert update.num_bytes == pytest.approx(28 * 8_030_261_248 / 8, rel=1e-4)
    mixed = next(
        o
        for o in operations_of(plan_of(engine="megatron", layout=Layout(dp_shard=8, zero_stage=1)))
        if o.name == "update"
    )
    assert mixed.num_bytes == pytest.approx(30 * 8_030_261_248 / 8, rel=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw-8bit", "sgd", "sgd-momentum", "lion", "adafactor"])
def test_smaller_optimizers_move_less(optimizer):
    adam, other = (
        next(o for o in operations_of(plan_of(optimizer=name, engine="fsdp2")) if o.name == "update")
        for name in ("adamw", optimizer)
    )
    assert other.num_bytes < adam.num_bytes


def test_muon_orthogonalises_hidden_matrices():
    """Five steps of 2 r (2 r c + r^2) for every hidden matrix of one Llama-3-8B block."""
    one = shapes.llama_3_8b(num_layers=1)
    found = next(o for o in operations_of(plan_of(one, optimizer="muon")) if o.name == "newton_schulz")

    def step(rows, columns):
        return 2 * rows * (2 * rows * columns + rows**2)

    expected = 5 * (2 * step(4096, 4096) + 2 * step(1024, 4096) + 3 * step(4096, 14336))
    assert found.flop == expected


def test_an_offloaded_optimizer_does_not_run_on_the_device():
    names = [o.name for o in operations_of(plan_of(offload="optimizer"))]
    assert "update" not in names
    assert "gradient norm" in names


def test_eager_norms_move_more_than_fused_ones():
    eager = plan_of(engine="torchtitan", compile=False)
    compiled = plan_of(engine="torchtitan", compile=True)
    traffic = [sum(o.count * o.num_bytes for o in operations_of(p) if o.name == "norms") for p in (eager, compiled)]
    assert traffic[0] == 9 * traffic[1]


def test_low_precision_products_keep_attention_and_head_in_bf16():
    cluster = shapes.cluster(1)
    gpu = replace(
        cluster.gpu, peaks=(*cluster.gpu.peaks, replace(cluster.gpu.peaks[0], dtype="fp8", flop_per_s=1979e12))
    )
    plan = plan_of(precision="fp8-mixed")
    plan = replace(plan, cluster=replace(cluster, node=replace(cluster.node, gpu=gpu)))
    dtypes = {o.name: o.dtype for o in operations_of(plan)}
    assert dtypes["mlp.gate_proj"] == "fp8"
    assert dtypes["head"] == "bf16"
    assert dtypes["attention.core"] == "bf16"
    assert "fp8 casts" in dtypes
    without_units = plan_of(precision="fp8-mixed")
    assert {o.dtype for o in operations_of(without_units) if o.kind == "matmul"} == {"bf16"}


def test_cross_attention_and_encoders_are_counted():
    layer = LLAMA.layers[0]
    spec = layer.mixer
    assert isinstance(spec, AttentionSpec)
    crossed = replace(layer, cross_attention=replace(spec, is_causal=False))
    model = replace(LLAMA, layers=(crossed,) * 2)
    names = [o.name for o in operations_of(plan_of(model))]
    assert "cross_attention.core" in names
    full = next(o for o in operations_of(plan_of(model)) if o.name == "cross_attention.core")
    half = next(o for o in operations_of(plan_of(model)) if o.name == "attention.core")
    assert full.flop == 2 * half.flop


def fp8_plan(**settings):
    plan = plan_of(precision="fp8-mixed", **settings)
    gpu = plan.cluster.gpu
    peaks = (*gpu.peaks, replace(gpu.peaks[0], dtype="fp8", flop_per_s=1979e12))
    node = replace(plan.cluster.node, gpu=replace(gpu, peaks=peaks))
    return replace(plan, cluster=replace(plan.cluster, node=node))


def by_name(plan):
    return {o.name: o for o in operations_of(plan) if o.phase in ("forward", "backward")}


def test_megatron_multiplies_by_query_key_and_value_at_once():
    """Llama 3 8B: 4,096 + 2 x 1,024 columns, and gate with up."""
    joined, separate = by_name(plan_of(engine="megatron")), by_name(plan_of())
    qkv = joined["self_attn.q_proj+k_proj+v_proj"]
    assert (qkv.m, qkv.n, qkv.k) == (8192, 6144, 4096)
    assert (joined["mlp.gate_proj+up_proj"].n, joined["mlp.gate_proj+up_proj.wgrad"].m) == (28672, 28672)
    assert "self_attn.k_proj" in separate
    assert "self_attn.k_proj" not in joined
    total = sum(o.count * o.flop for o in operations_of(plan_of(engine="megatron")))
    assert total == pytest.approx(sum(o.count * o.flop for o in operations_of(plan_of())))


def test_low_rank_projections_are_not_joined():
    """MLA's second projections read different inputs."""
    layer = shapes.dense_layer(hidden_size=512, intermediate_size=1536, heads=8, kv_heads=8)
    names = {"self_attn.q_proj.weight": "self_attn.q_b_proj.weight", "self_attn.k_proj.weight": "self_attn.kv_b.weight"}
    weights = tuple(
        replace(w, name=names[w.name], shape=(w.shape[0], 96 if "q_" in w.name else 64)) if w.name in names else w
        for w in layer.weights
    )
    model = shapes.model(replace(layer, weights=weights), num_layers=1, hidden_size=512, vocab_size=1024)
    joined = by_name(plan_of(model, engine="megatron"))
    assert {"self_attn.q_b_proj", "self_attn.kv_b", "self_attn.v_proj"} <= set(joined)


def test_transformer_engine_casts_what_no_norm_wrote():
    """8,192 tokens, 4 bytes: inputs of output and down projections; all output gradients; weights once per step."""
    casts = by_name(fp8_plan(engine="megatron"))
    assert casts["fp8 casts"].num_bytes == 8192 * 4 * (4096 + 14336)
    assert casts["fp8 casts.backward"].num_bytes == 8192 * 4 * (6144 + 4096 + 28672 + 4096)


def test_torch_casts_each_input_once_and_again_in_backward():
    """5 bytes for two norm outputs and two inner tensors, and for weights that are not gathered; 3 bytes again."""
    casts = by_name(fp8_plan(compile=True))
    inputs, weights = 8192 * (4096 + 4096 + 4096 + 14336), 218_103_808
    gradients = 8192 * (4096 + 1024 + 1024 + 4096 + 14336 + 14336 + 4096)
    assert casts["fp8 casts"].num_bytes == 5 * (inputs + weights)
    assert casts["fp8 casts.backward"].num_bytes == 5 * gradients + 3 * inputs


def test_sharded_sequences_are_cast_before_they_are_gathered():
    layout = Layout(tp=2, zero_stage=0, sequence_parallel=True)
    casts = by_name(fp8_plan(compile=True, layout=layout))
    inputs, weights = 8192 * (4096 + 4096 + 4096 + 14336) // 2, 218_103_808 // 2
    assert casts["fp8 casts"].num_bytes == 5 * (inputs + weights)


def test_kernels_of_a_block_are_those_counted_on_a_device():
    """An eager GPT block with flash attention launched 13 forward: products, two norms, sums and dropouts, GELU, and
    attention in two."""
    layer = shapes.dense_layer(hidden_size=256, intermediate_size=1024, heads=4, kv_heads=4, is_gated=False)
    layer = replace(layer, mixer=replace(layer.mixer, has_rotary=False))
    model = shapes.model(layer, num_layers=1, hidden_size=256, vocab_size=1024)
    plan = plan_of(replace(model, hidden_dropout_fraction=0.1), engine="native", precision="bf16")
    outside = {"embedding", "head", "final_norm", "loss"}
    forward = [o for o in operations_of(plan) if o.phase == "forward" and o.name not in outside]
    num_products = sum(o.kind == "matmul" for o in forward)
    assert sum(o.num_kernels for o in forward) == num_products + 2 + 2 + 2 + 1 + 2


def test_dropout_and_megatrons_softmax_change_the_traffic_of_scores():
    """42 bytes unfused, 28.7 with one kernel for scale, mask and softmax, 9.4 more with dropout: at a copy's rate."""
    scores = 32 * 32 * 8192**2
    for engine, dropout, num_bytes in (
        ("native", 0.0, 42),
        ("native", 0.1, 51.4),
        ("megatron", 0.0, 28.7),
        ("megatron", 0.1, 38.1),
    ):
        model = replace(LLAMA, attention_dropout_fraction=dropout)
        plan = plan_of(model, engine=engine, attention="eager")
        traffic = sum(o.count * o.num_bytes for o in operations_of(plan) if o.kind == "attention")
        assert traffic == pytest.approx(num_bytes * scores, rel=1e-9)


def test_the_host_issues_what_surrounds_a_block():
    """FSDP's units, autocast, tensor-parallel calls and gradients added one by one cost the host, not the device."""
    plain = plan_of(precision="bf16")
    assert "host calls" not in by_name(plain)
    assert by_name(plan_of(layout=Layout(dp_shard=8)))["host calls, gathered"].num_kernels == 54
    calls = by_name(plan_of(engine="megatron", layout=Layout(tp=2, zero_stage=0, sequence_parallel=True)))
    assert calls["host calls"].num_kernels == 41 + 8
    assert calls["host calls.backward"].num_kernels == 12 + 8 + len(LLAMA.layers[0].weights)
    assert calls["host calls"].num_bytes == 0


def test_dtensors_cost_the_host_more_than_local_parts_and_less_when_compiled():
    layout = Layout(tp=2, zero_stage=0, sequence_parallel=True)

    def kernels(engine, *, is_compiled=False):
        return by_name(plan_of(engine=engine, layout=layout, compile=is_compiled))["host calls"].num_kernels

    assert kernels("fsdp2") - kernels("fsdp2", is_compiled=True) == 190 - 20
    assert kernels("native") == kernels("native", is_compiled=True) == 18 + 20


def test_checkpointing_keeps_torchs_host_busy_and_not_that_of_compiled_blocks():
    """Gathering happens once, selective recomputation looks at every operator; compiled, both are kernels alone."""

    def around(phase, **recipe):
        found = [one for one in operations_of(plan_of(layout=Layout(dp_shard=8), **recipe)) if one.phase == phase]
        return sum(one.num_kernels for one in found if one.name == "host calls, gathered")

    assert [around(phase, recompute="full", compile=False) for phase in ("forward", "recompute")] == [54, 63]
    selective = [around(phase, recompute="selective", compile=False) for phase in ("forward", "recompute")]
    assert selective == [54 + 105, 88]
    assert around("recompute", recompute="selective", compile=True) == 0


def test_many_host_calls_do_not_make_a_block_a_gathered_one():
    """Selective recomputation of divided blocks keeps the host busier than gathering does."""
    whole = plan_of(layout=Layout(tp=2, zero_stage=0), engine="native", recompute="selective", compile=False)
    calls = [one for one in operations_of(whole) if one.name.startswith("host calls")]
    assert max(one.num_kernels for one in calls) > 54
    assert not any("gathered" in one.name for one in calls)


def test_fsdp_on_one_rank_casts_weights_and_accumulates_as_autocast_does():
    plans = [plan_of(layout=Layout(zero_stage=stage), precision="fp16-mixed") for stage in (0, 3)]
    copies = [{operation.name: operation.num_bytes for operation in operations_of(plan)} for plan in plans]
    for name in ("autocast copies", "gradient accumulation"):
        assert copies[0][name] == copies[1][name] > 0


def test_packed_documents_attend_within_themselves():
    """Eight documents of 1,024 in 8,192 tokens: an eighth of the pairs, and nothing else changes."""
    whole, packed = plan_of(), plan_of(mean_document_len=1024)
    assert flop(whole, "forward", kinds=("attention",)) == 8 * flop(packed, "forward", kinds=("attention",))
    assert flop(whole, "forward", kinds=("matmul",)) == flop(packed, "forward", kinds=("matmul",))


def added_bytes(engine, *, pp=1, tp=1, zero_stage=1, accumulated=4, precision="fp16-mixed"):
    """Traffic of adding gradients up in one micro-batch, over the elements of the stage that holds no table."""
    layout = Layout(dp_shard=2, pp=pp, tp=tp, zero_stage=zero_stage)
    plan = plan_of(engine=engine, layout=layout, global_batch_size=2 * accumulated, precision=precision)
    context = StageContext(plan=plan, stage=pipeline_stages(model=plan.model, layout=layout)[pp // 2])
    found = {operation.name: operation.num_bytes for operation in stage_operations(context)}
    return found.get("gradient accumulation", 0) / trained_elements(context).whole


def test_whole_gradients_of_16_bits_are_added_up_by_kernels_of_their_own():
    """The first micro-batch's is taken over; each of three others reads two and writes one: 3/4 of 6 bytes."""
    assert added_bytes("deepspeed") == pytest.approx(4.5)
    assert added_bytes("deepspeed", tp=2) == pytest.approx(4.5)
    assert added_bytes("deepspeed", accumulated=1) == 0.0


def test_deepspeeds_pipeline_adds_bf16_gradients_to_an_fp32_copy_of_them():
    """Cast (2 read, 4 written) and added (8 read, 4 written) in every micro-batch, the first one too."""
    assert added_bytes("deepspeed", pp=4, precision="bf16-mixed") == pytest.approx(18.0)
    assert added_bytes("deepspeed", pp=4, precision="fp16-mixed") == pytest.approx(4.5)


def test_gradients_that_products_add_up_or_every_micro_batch_reduces_need_no_such_kernel():
    assert added_bytes("megatron") == 0.0
    assert added_bytes("deepspeed", zero_stage=2) == 0.0


def test_tensor_parallel_ranks_share_copies_of_tokens_or_the_width_of_experts():
    """Each of two ranks sends half of the copies to whole experts, or all of them to halves of experts."""
    layer = shapes.moe_layer(hidden_size=2048, expert_size=768, heads=32, kv_heads=4, experts=128, per_token=8)
    model = shapes.model(layer, num_layers=3, hidden_size=2048, vocab_size=1024)

    def up(**layout):
        found = by_name(plan_of(model, seq_len=1024, layout=Layout(zero_stage=0, **layout)))["mlp.experts.up_proj"]
        return found.m, found.n, found.flop

    flop = 2 * 1024 * 8 * 2048 * 768
    assert up() == (1024 * 8 // 128, 768, flop)
    assert up(tp=2) == (1024 * 8 // 128 // 2, 768, flop / 2)
    assert up(tp=2, expert_tp=2) == (1024 * 8 // 128, 384, flop / 2)
