"""Bytes that kernels of one micro-batch read and write, added up by hand for Llama 3 8B and 8,192 tokens."""

from dataclasses import replace

import pytest

import shapes
from shardwise.layout import Layout
from shardwise.model import DenseSpec, MambaSpec
from step.test_operations import LLAMA, by_name, fp8_plan, operations_of, plan_of

TOKENS, HIDDEN, WIDTH = 8192, 4096, 14_336
STREAM = TOKENS * HIDDEN
"""Elements of the residual stream."""
MODEL, TABLE, BLOCK = 8_030_261_248, 128_256 * 4096, 218_112_000
HEADS = TOKENS * (32 + 8) * 128
"""Elements of queries and keys."""


def traffic(plan):
    return {name: one.num_bytes for name, one in by_name(plan).items()}


def both(plan, name):
    found = traffic(plan)
    return found[name], found[f"{name}.backward"]


def kernels(plan, name):
    found = by_name(plan)
    return found[name].num_kernels, found[f"{name}.backward"].num_kernels


def test_elementwise_kernels_of_a_compiled_block():
    """Two norms read and write 4 bytes, three times that backward; two sums read two and write one; SwiGLU likewise."""
    plan = plan_of(compile=True)
    assert both(plan, "norms") == (2 * 4 * STREAM, 2 * 12 * STREAM)
    assert both(plan, "residuals") == (2 * 6 * STREAM, 2 * 6 * STREAM)
    assert both(plan, "attention.rotary") == (4 * HEADS, 4 * HEADS)
    assert both(plan, "mlp.activation") == (6 * TOKENS * WIDTH, 10 * TOKENS * WIDTH)
    assert kernels(plan, "norms") == (2, 4)
    assert kernels(plan, "residuals") == (2, 2)
    assert kernels(plan, "attention.rotary") == (2, 2)
    assert kernels(plan, "mlp.activation") == (1, 1)


def test_elementwise_kernels_of_an_eager_block():
    """Norms as casts, squares, means and products; rotation as negation, concatenation, two products and a sum."""
    plan = plan_of(engine="torchtitan", compile=False)
    assert both(plan, "norms") == (2 * 36 * STREAM, 2 * 93 * STREAM)
    assert both(plan, "attention.rotary") == (16 * HEADS, 16 * HEADS)
    assert both(plan, "mlp.activation") == (10 * TOKENS * WIDTH, 16 * TOKENS * WIDTH)
    assert kernels(plan, "norms") == (2 * 8, 2 * 16)
    assert kernels(plan, "attention.rotary") == (6, 8)
    assert kernels(plan, "mlp.activation") == (2, 3)


def test_numbers_of_four_bytes_move_twice_as_much():
    half, full = plan_of(precision="bf16", compile=True), plan_of(precision="fp32", compile=True)
    for name in ("norms", "residuals", "attention.rotary", "mlp.activation", "attention.core"):
        assert both(full, name) == tuple(2 * one for one in both(half, name))
    assert traffic(full)["self_attn.q_proj"] == 2 * traffic(half)["self_attn.q_proj"]


def test_norms_of_queries_and_keys_move_these():
    layer = LLAMA.layers[0]
    normed = replace(layer, mixer=replace(layer.mixer, has_qk_norm=True))
    model = replace(LLAMA, layers=(normed,) * 32)
    fused, eager = plan_of(model, compile=True), plan_of(model, engine="torchtitan", compile=False)
    assert both(fused, "attention.qk_norm") == (4 * HEADS, 12 * HEADS)
    assert kernels(fused, "attention.qk_norm") == (2, 4)
    assert both(eager, "attention.qk_norm") == (36 * HEADS, 93 * HEADS)
    assert kernels(eager, "attention.qk_norm") == (2 * 8, 2 * 16)


@pytest.mark.parametrize(("is_compiled", "moved"), [(True, 1), (False, 5)])
def test_dropout_reads_writes_and_keeps_a_mask(is_compiled, moved):
    """2 + 2 + 1 bytes by itself; inside a fused kernel the mask alone."""
    plan = plan_of(replace(LLAMA, hidden_dropout_fraction=0.1), compile=is_compiled)
    assert both(plan, "dropout") == (2 * moved * STREAM, 2 * moved * STREAM)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_parallelism_divides_heads_and_width_and_with_sequences_the_stream(sequence_parallel):
    whole = plan_of(compile=True)
    divided = plan_of(compile=True, layout=Layout(tp=4, zero_stage=0, sequence_parallel=sequence_parallel))
    for name in ("attention.rotary", "mlp.activation", "attention.core"):
        assert [4 * one for one in both(divided, name)] == list(both(whole, name))
    stream = 4 if sequence_parallel else 1
    for name in ("norms", "residuals"):
        assert [stream * one for one in both(divided, name)] == list(both(whole, name))


def test_flash_attention_streams_queries_keys_values_and_outputs():
    """16 bits each; backward moves two and a half times that and computes five products for two."""
    plan = plan_of()
    streamed = 2 * TOKENS * (32 + 8) * (128 + 128)
    assert both(plan, "attention.core") == (streamed, 2.5 * streamed)
    found = by_name(plan)
    flop = 2 * (TOKENS**2 / 2) * 32 * (128 + 128)
    assert found["attention.core"].flop == flop
    assert found["attention.core.backward"].flop == 2.5 * flop
    assert (found["attention.core"].m, found["attention.core"].n, found["attention.core"].k) == (8192, 8192, 128)
    split = by_name(plan_of(layout=Layout(cp=4, zero_stage=0)))
    assert split["attention.core"].m == 2048
    assert split["attention.core"].flop == flop / 4
    assert by_name(plan_of(mean_document_len=1024))["attention.core"].m == 1024
    assert kernels(plan, "attention.core") == (2, 3)


def test_more_sequences_at_once_attend_each_to_itself():
    one, two = by_name(plan_of()), by_name(plan_of(micro_batch_size=2))
    assert two["attention.core"].flop == 2 * one["attention.core"].flop
    eager = by_name(plan_of(attention="eager", micro_batch_size=2))["attention.core"]
    assert eager.flop == 2 * one["attention.core"].flop
    assert eager.num_bytes == 14 * 2 * 32 * TOKENS**2
    assert by_name(plan_of(attention="eager"))["attention.core.backward"].flop == 2 * one["attention.core"].flop
    part = by_name(plan_of(attention="eager", layout=Layout(cp=2, tp=4, zero_stage=0)))["attention.core"]
    assert part.num_bytes == 14 * 32 * TOKENS**2 // 8


def test_dropout_slows_flash_attention_and_not_eager():
    model = replace(LLAMA, attention_dropout_fraction=0.1)
    flash, eager = by_name(plan_of(model)), by_name(plan_of(model, attention="eager"))
    slower = [flash[name].slowdown_ratio for name in ("attention.core", "attention.core.backward")]
    assert slower == [1.22, 1.13]
    assert eager["attention.core"].slowdown_ratio == 1.0


def test_a_product_reads_both_sides_and_writes_the_third():
    """Megatron reads and writes the gradient of a weight in its fp32 buffer; torch writes it in 16 bits."""
    into, out, weights = TOKENS * HIDDEN, TOKENS * WIDTH, HIDDEN * WIDTH
    found = traffic(plan_of())
    for name in ("mlp.gate_proj", "mlp.gate_proj.dgrad", "mlp.gate_proj.wgrad"):
        assert found[name] == 2 * (into + out + weights)
    megatron = traffic(plan_of(engine="megatron"))
    assert megatron["mlp.down_proj.wgrad"] == 2 * (into + out) + 2 * 4 * weights


def test_a_bias_gradient_reads_what_its_product_puts_out():
    layer = LLAMA.layers[0]
    biases = tuple(
        replace(one, name=f"self_attn.{name}.bias", shape=(size,), split=split, role="bias", split_limit=None)
        for one, name, size, split in (
            (layer.weights[0], "q_proj", 4096, "column"),
            (layer.weights[1], "k_proj", 1024, "column"),
            (layer.weights[3], "o_proj", 4096, "replicated"),
        )
    )
    model = replace(LLAMA, layers=(replace(layer, weights=layer.weights + biases),) * 32)
    found = by_name(plan_of(model))["bias gradients"]
    assert found.num_bytes == 2 * TOKENS * (4096 + 1024 + 4096)
    assert found.num_kernels == 3
    divided = by_name(plan_of(model, layout=Layout(tp=2, zero_stage=0)))["bias gradients"]
    assert divided.num_bytes == 2 * TOKENS * ((4096 + 1024) // 2 + 4096)


def moe_model(shared=0, *, is_gated=True):
    layer = shapes.moe_layer(hidden_size=2048, expert_size=768, heads=32, kv_heads=4, experts=128, per_token=8)
    spec = replace(layer.feed_forward, shared_intermediate_size=shared, is_gated=is_gated)
    return shapes.model(replace(layer, feed_forward=spec), num_layers=3, hidden_size=2048, vocab_size=1024)


def test_experts_move_every_copy_of_a_token():
    """Eight copies: SwiGLU's 6 and 10 bytes of 768 numbers, gathered and put back in 8 of 2,048; 128 scores in 10."""
    plan = plan_of(moe_model(shared=1024), engine="megatron")
    assert both(plan, "experts.activation") == (6 * 8 * TOKENS * 768, 10 * 8 * TOKENS * 768)
    assert both(plan, "experts.permute") == (8 * 8 * TOKENS * 2048, 8 * 8 * TOKENS * 2048)
    assert both(plan, "router.scores") == (10 * TOKENS * 128, 10 * TOKENS * 128)
    assert both(plan, "shared_experts.activation") == (6 * TOKENS * 1024, 10 * TOKENS * 1024)
    plain = plan_of(moe_model(is_gated=False), compile=False)
    assert both(plain, "experts.activation") == (4 * 8 * TOKENS * 768, 6 * 8 * TOKENS * 768)
    assert kernels(plain, "experts.activation") == (1, 1)


def test_torchs_indexing_moves_rows_of_experts_several_times():
    """Bytes as long as what was timed on one H200: our trainer gathers rows (``2026-11-30-h200-moe.md``), torchtitan
    writes them by index."""
    elements, copies = 8 * TOKENS * 2048, 8 * TOKENS
    ours, titan = (plan_of(moe_model(), engine=engine, compile=True) for engine in ("native", "torchtitan"))
    assert both(ours, "experts.permute") == pytest.approx((4.3 * elements + 3800 * copies, 6.2 * elements))
    assert both(ours, "experts.activation") == pytest.approx((5 * 8 * TOKENS * 768, 12.2 * 8 * TOKENS * 768))
    assert both(titan, "experts.permute")[1] == pytest.approx(1.36 * 104 * elements, rel=1e-6)  # autocast: fp32
    assert both(titan, "experts.activation") == (6 * 8 * TOKENS * 768, 10 * 8 * TOKENS * 768)


def test_tensor_parallelism_divides_what_experts_move_and_sequences_the_scores():
    whole = plan_of(moe_model(shared=1024), compile=True)
    layout = Layout(tp=2, zero_stage=0, sequence_parallel=True)
    divided = plan_of(moe_model(shared=1024), compile=True, layout=layout)
    for name in ("experts.activation", "experts.permute", "router.scores", "shared_experts.activation"):
        assert [2 * one for one in both(divided, name)] == list(both(whole, name))


def test_a_scan_is_bound_by_memory_and_computes_9_flop_a_state():
    """Ten tensors of 16 bits forward and twice that backward; twice the FLOP (Gu and Dao 2023, arXiv:2312.00752)."""
    mixer = MambaSpec(intermediate_size=8192, state_size=16, conv_kernel=4, time_step_rank=256)
    layer = replace(LLAMA.layers[0], mixer=mixer)
    plan = plan_of(replace(LLAMA, layers=(layer,) * 4))
    assert both(plan, "scan") == (20 * TOKENS * 8192, 40 * TOKENS * 8192)
    found = by_name(plan)
    assert (found["scan"].flop, found["scan.backward"].flop) == (9 * TOKENS * 8192 * 16, 18 * TOKENS * 8192 * 16)
    halved = by_name(plan_of(replace(LLAMA, layers=(layer,) * 4), layout=Layout(tp=2, zero_stage=0)))
    assert 2 * halved["scan"].num_bytes == found["scan"].num_bytes
    full = plan_of(replace(LLAMA, layers=(layer,) * 4), precision="fp32")
    assert both(full, "scan") == (2 * 20 * TOKENS * 8192, 2 * 40 * TOKENS * 8192)


def test_a_plain_feed_forward_has_one_activation():
    layer = replace(LLAMA.layers[0], feed_forward=DenseSpec(intermediate_size=WIDTH, hidden_act="gelu", is_gated=False))
    plan = plan_of(replace(LLAMA, layers=(layer,) * 4), compile=False)
    assert both(plan, "mlp.activation") == (4 * TOKENS * WIDTH, 6 * TOKENS * WIDTH)


def once(plan):
    return {one.name: one.num_bytes for one in operations_of(plan)}


def native(**layout):
    chosen = {"dp_shard": 8, "exchange_gradients": False, "spread_vocabulary": False} | layout
    return plan_of(layout=Layout(**chosen))


def test_fsdp_copies_out_of_what_it_gathers_and_into_what_it_reduces():
    """Read and written in 16 bits, again in backward; 2 bytes read and 4 written of every gradient."""
    found = once(native())
    assert found["gather copies"] == (2 + 2) * MODEL
    assert found["reduce copies"] == (2 + 2 + 2 + 4) * MODEL
    assert once(native(reshard_after_forward=False))["reduce copies"] == (2 + 4) * MODEL
    exchanged = once(native(exchange_gradients=True))["reduce copies"]
    assert exchanged == (2 + 2 + 2 + 2 + 2) * MODEL + 4 * MODEL // 8
    spread = once(native(spread_vocabulary=True))
    assert spread["gather copies"] == (2 + 2) * (MODEL - 2 * TABLE)
    assert spread["reduce copies"] == (2 + 2 + 2 + 4) * (MODEL - 2 * TABLE)


def test_autocast_casts_weights_and_adds_fp32_gradients():
    """4 read and 2 written; the gradient's 2 read, and its fp32 sum read and written."""
    found = once(plan_of(engine="fsdp1", layout=Layout(dp_shard=8, zero_stage=0)))
    assert found["autocast copies"] == (4 + 2) * MODEL
    assert found["gradient accumulation"] == (2 + 4 + 4) * MODEL
    pure = once(plan_of(engine="fsdp2", layout=Layout(), precision="bf16"))
    assert "autocast copies" not in pure


@pytest.mark.parametrize(("layout", "passes"), [({"dp_shard": 8}, 3), ({"cp": 2}, 3), ({}, 1)])
def test_megatron_clears_its_buffer_and_scales_it_where_several_ranks_reduce(layout, passes):
    found = once(plan_of(engine="megatron", layout=Layout(zero_stage=1, **layout)))
    assert found["gradient buffer"] == passes * 4 * MODEL


def test_the_norm_reads_gradients_and_clipping_writes_them():
    for layout, ranks in (({"dp_shard": 8}, 8), ({}, 1)):
        found = once(plan_of(engine="fsdp1", layout=Layout(**layout)))
        assert found["gradient norm"] == pytest.approx(4 * MODEL / ranks)
        assert found["gradient clipping"] == pytest.approx(8 * MODEL / ranks)
    whole = once(plan_of(engine="fsdp1", layout=Layout(dp_shard=8, zero_stage=0)))
    assert whole["gradient norm"] == 4 * MODEL
    assert once(plan_of(engine="fsdp1", layout=Layout(dp_shard=8, zero_stage=1)))["gradient norm"] == 4 * MODEL / 8


def test_moments_of_two_bytes_move_half_as_much():
    """Weight 8 and gradient 4 bytes, moments 16 or 8."""
    for dtype, moved in (("fp32", 16), ("bf16", 8)):
        plan = plan_of(engine="fsdp1", layout=Layout(dp_shard=8), moment_dtype=dtype)
        assert once(plan)["update"] == pytest.approx((8 + 4 + moved) * MODEL / 8)


def test_ranks_that_divide_matrices_or_states_share_muons_products():
    def flop(**layout):
        plan = plan_of(shapes.llama_3_8b(num_layers=2), optimizer="muon", engine="fsdp2", layout=Layout(**layout))
        return next(one for one in operations_of(plan) if one.name == "newton_schulz").flop

    assert flop() == 2 * flop(tp=2) == 8 * flop(dp_shard=8) == 16 * flop(tp=2, dp_shard=8)
    layer = shapes.moe_layer(hidden_size=2048, expert_size=768, heads=32, kv_heads=4, experts=128, per_token=8)
    model = shapes.model(layer, num_layers=1, hidden_size=2048, vocab_size=1024)
    found = next(one for one in operations_of(plan_of(model, optimizer="muon")) if one.name == "newton_schulz")

    def step(short, long):
        return 2 * short * (2 * short * long + short**2)

    attention = 2 * step(2048, 2048) + 2 * step(256, 2048)
    assert found.flop == 5 * (attention + 3 * 128 * step(768, 2048))


def test_the_embedding_reads_and_writes_rows_and_clears_its_gradient():
    found = traffic(plan_of(engine="fsdp1", layout=Layout(dp_shard=8)))
    assert found["embedding"] == 2 * 2 * STREAM
    assert found["embedding.backward"] == 2 * 2 * STREAM + 2 * TABLE
    halved = traffic(plan_of(engine="fsdp1", layout=Layout(tp=2)))
    assert halved["embedding.backward"] == 2 * 2 * STREAM + 2 * TABLE // 2
    assert "embedding.backward" not in traffic(plan_of(engine="fsdp1", adapter="lora"))


def test_a_divided_vocabulary_looks_up_its_rows_for_all_ranks():
    """Looked up in fp32 (4 + 4), cast (4 + 2) and masked (2 + 2); a gradient of 2 bytes is cleared and cast to 4.

    The head's rows are cast (4 + 2) and their gradient back (2 + 4); every rank reads what eight say of all tokens and
    adds up what concerns its own: 2 bytes a number of all, 10 of its own.
    """
    found = traffic(native(spread_vocabulary=True))
    everyone = 8 * STREAM
    assert found["embedding"] == 18 * everyone
    assert found["embedding.backward"] == 2 * 2 * everyone + (2 + 2 + 4) * TABLE // 8
    assert found["head.rows"] == (4 + 2) * TABLE // 8
    assert found["head.sums"] == (2 + 4) * TABLE // 8 + 2 * everyone + 5 * 2 * STREAM
    head = by_name(native(spread_vocabulary=True))["head"]
    assert (head.m, head.n, head.k) == (8 * TOKENS, 128_256 // 8, HIDDEN)
    assert "head.rows" not in traffic(native())


@pytest.mark.parametrize(
    ("engine", "settings", "forward", "backward"),
    [("native", {"compile": True}, 6, 4), ("fsdp2", {"compile": False}, 21, 22), ("fsdp1", {"compile": False}, 29, 22)],
)
def test_the_final_norm_and_the_loss_move_these(engine, settings, forward, backward):
    for precision, scale in (("bf16", 1), ("fp32", 2)):
        plan = plan_of(
            engine=engine, layout=Layout(dp_shard=8, spread_vocabulary=False), precision=precision, **settings
        )
        found = traffic(plan)
        assert (found["final_norm"], found["final_norm.backward"]) == (4 * STREAM * scale, 8 * STREAM * scale)
        logits = TOKENS * 128_256
        assert (found["loss"], found["loss.backward"]) == (forward * logits * scale, backward * logits * scale)


def test_megatron_pads_its_table_to_128_rows_for_every_tensor_parallel_rank():
    """Of 1,000 rows on 4 ranks it makes 1,024, on 16 2,048 (``--make-vocab-size-divisible-by``)."""
    model = shapes.model(LLAMA.layers[0], num_layers=1, hidden_size=4096, vocab_size=1000)
    for tp, rows in ((1, 1024), (4, 256), (16, 128)):
        assert by_name(plan_of(model, engine="megatron", layout=Layout(tp=tp, zero_stage=0)))["head"].n == rows
    assert by_name(plan_of(model, engine="fsdp2", layout=Layout(tp=16, zero_stage=0)))["head"].n == 63


def test_cross_attention_adds_a_sum_and_a_dropout():
    layer = LLAMA.layers[0]
    crossed = replace(LLAMA, layers=(replace(layer, cross_attention=layer.mixer),) * 4, hidden_dropout_fraction=0.1)
    plan = plan_of(crossed, compile=True)
    assert both(plan, "residuals") == (3 * 6 * STREAM, 3 * 6 * STREAM)
    assert both(plan, "dropout") == (3 * STREAM, 3 * STREAM)


def test_gradients_of_divided_sequences_are_cast_before_they_are_gathered():
    """5 bytes of what enters a product backward: columns are half as wide on 2 ranks, and o and down see half of the
    tokens; 3 bytes of inputs, which are of half of the tokens or half as wide."""
    plan = fp8_plan(compile=True, layout=Layout(tp=2, zero_stage=0, sequence_parallel=True))
    gradients = TOKENS * (4096 + 2 * 1024 + 2 * WIDTH) // 2 + TOKENS // 2 * (4096 + 4096)
    inputs = TOKENS * (4096 + 4096 + 4096 + WIDTH) // 2
    assert traffic(plan)["fp8 casts.backward"] == 5 * gradients + 3 * inputs


def test_8_bit_products_read_8_bits_and_write_16():
    into, out, weights = TOKENS * HIDDEN, TOKENS * WIDTH, HIDDEN * WIDTH
    found = traffic(fp8_plan(compile=True))
    assert found["mlp.gate_proj"] == into + weights + 2 * out
    assert found["mlp.gate_proj.dgrad"] == out + weights + 2 * into
    assert found["mlp.gate_proj.wgrad"] == into + out + 2 * weights


@pytest.mark.parametrize(("is_compiled", "each"), [(True, 2.5), (False, 10.5)])
def test_tensor_parallel_ranks_unpack_their_part_of_4_bit_weights(is_compiled, each):
    plan = plan_of(adapter="qlora", compile=is_compiled, layout=Layout(tp=2, zero_stage=0))
    assert both(plan, "dequantise") == (each * 218_103_808 / 2, each * 218_103_808 / 2)


def host(plan):
    found = by_name(plan)
    return tuple(
        sum(one.num_kernels for name, one in found.items() if name.startswith("host calls") and one.phase == phase)
        for phase in ("forward", "backward")
    )


def test_the_host_issues_so_many_kernels_around_a_block():
    """An FSDP2 unit 54 and 67, over one rank 18 and 47, tensor parallelism 20 and 56, DTensors 190 and 225, Megatron
    41 and 12 and two for each of two sums or four gathers and scatters, autocast 10 and 13, adding gradients one for
    each weight."""
    assert host(plan_of(engine="fsdp2", layout=Layout(dp_shard=8))) == (54, 67)
    assert host(native()) == (54, 67)
    assert host(native(tp=2)) == (54 + 20, 67 + 56)
    assert host(plan_of(layout=Layout(tp=2, zero_stage=0))) == (18 + 20, 47 + 56)
    assert host(plan_of(engine="fsdp2", layout=Layout(dp_shard=8, tp=2), compile=False)) == (54 + 190, 67 + 225)
    assert host(plan_of(engine="megatron")) == (41, 12 + 9)
    for sequence_parallel, calls in ((False, 4), (True, 8)):
        layout = Layout(tp=2, zero_stage=0, sequence_parallel=sequence_parallel)
        assert host(plan_of(engine="megatron", layout=layout)) == (41 + calls, 12 + calls + 9)
    autocast = Layout(dp_shard=8, zero_stage=0)
    assert host(plan_of(engine="fsdp1", layout=autocast)) == (10, 13)
    assert host(plan_of(engine="fsdp1", layout=autocast, global_batch_size=16)) == (10, 13 + 9)


def test_the_host_issues_more_beside_adapted_and_packed_matrices():
    """Seven matrices: 3 and 1 kernels beside an adapted one, 2 and 6 beside one in 4 bits."""
    eager = {"compile": False, "precision": "bf16", "lora_targets": "all-linear"}
    plain = host(plan_of(**eager | {"adapter": "none"}))
    adapted, packed = host(plan_of(adapter="lora", **eager)), host(plan_of(adapter="qlora", **eager))
    assert adapted == (plain[0] + 7 * 3, plain[1] + 7 * 1)
    assert packed == (adapted[0] + 7 * 2, adapted[1] + 7 * 6)
