"""Rows of other pre-training stacks: Colossal-AI and llm-foundry."""

from dataclasses import dataclass

from benchmarks.published.parts import (
    Conversion,
    DecoderShape,
    Reading,
    cluster_for,
    decoder,
    measured,
    row_shape,
    unused,
)
from benchmarks.published.rows import MeasurementRow

from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.recipe import Precision, Recipe

COLOSSAL_ASSUMPTIONS = (
    "the batch per data-parallel rank runs as one micro-batch",
    "full recomputation: without it the activations alone exceed the device several times",
    "Llama-2-7B shape, bf16 with fp32 master weights, FlashAttention",
)


def convert_colossal(row: MeasurementRow) -> Conversion:
    """A COLOSSAL row; only the pure ZeRO one states a possible layout and its micro-batch."""
    shape, dp = row_shape(row), row.integer("dp")
    if row.id != "COLOSSAL-001" or shape is None or not dp:
        return unused(row, "layout contradicts the GPU count or the micro-batch is not stated")
    batch_per_rank = (row.integer("global_batch") or 0) // dp
    plan = Plan(
        model=decoder(shape),
        cluster=cluster_for(gpu_label=row.text("gpu"), num_gpus=dp),
        recipe=Recipe(
            seq_len=4096,
            micro_batch_size=batch_per_rank,
            global_batch_size=batch_per_rank * dp,
            precision="bf16-mixed",
            recompute="full",
            attention="flash",
            compile=False,
        ),
        layout=Layout(dp_shard=dp, zero_stage=2),
        engine="deepspeed",
    )
    reading = Reading(figure=row.text("peak_mem"), unit=row.text("mem_unit"), scope="allocated")
    return measured(row, plan, reading, assumptions=COLOSSAL_ASSUMPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _MptShape:
    layers: int
    hidden: int
    heads: int


MPT_SHAPES = {
    "mpt-125m": _MptShape(layers=12, hidden=768, heads=12),
    "mpt-350m": _MptShape(layers=24, hidden=1024, heads=16),
    "mpt-760m": _MptShape(layers=24, hidden=1536, heads=12),
    "mpt-1b": _MptShape(layers=24, hidden=2048, heads=16),
    "mpt-3b": _MptShape(layers=32, hidden=2560, heads=20),
    "mpt-7b": _MptShape(layers=32, hidden=4096, heads=32),
    "mpt-13b": _MptShape(layers=40, hidden=5120, heads=40),
    "mpt-30b": _MptShape(layers=48, hidden=7168, heads=56),
    "mpt-70b": _MptShape(layers=80, hidden=8192, heads=64),
}
"""mosaicml/llm-foundry@8c8dd48 scripts/train/yamls/pretrain/mpt-*.yaml; the printed parameter counts follow exactly."""

MPT_ASSUMPTIONS = (
    "GPT-2 blocks with biases and learned positions for the run's length, 50,368 tokens tied",
    "fp32 master weights under FSDP 1; gathered and reduced in bf16; FlashAttention; decoupled AdamW",
    "flash-attn's cross-entropy, which writes the gradient over the bf16 logits, read as a fused loss",
)


def convert_mpt_run(row: MeasurementRow) -> Conversion:
    """A RUNMPT row: MPT under FSDP 1; the source prints no memory, only that the run ran."""
    shape = MPT_SHAPES[row.text("model")]
    num_gpus, micro_batch, seq_len, global_batch = (
        row.integer(name) for name in ("n_gpus", "micro_batch", "seq", "global_batch")
    )
    if not (num_gpus and micro_batch and seq_len and global_batch):
        return unused(row, "batch or sequence length not stated")
    is_fp8 = "fp8" in row.text("precision")
    precision: Precision = "fp8-mixed" if is_fp8 else "bf16-mixed"
    plan = Plan(
        model=_mpt(shape, seq_len),
        cluster=cluster_for(gpu_label=row.text("gpu"), num_gpus=num_gpus),
        recipe=Recipe(
            seq_len=seq_len,
            micro_batch_size=micro_batch,
            global_batch_size=global_batch - global_batch % (micro_batch * num_gpus),
            precision=precision,
            recompute="full" if row.text("act_ckpt") == "full" else "none",
            attention="flash",
            compile=False,
            fused_loss=True,
        ),
        layout=Layout(
            dp_shard=num_gpus, zero_stage=3, reshard_after_forward="SHARD_GRAD_OP" not in row.text("strategy")
        ),
        engine="fsdp1",
    )
    return measured(row, plan, None, assumptions=MPT_ASSUMPTIONS)


def _mpt(shape: _MptShape, seq_len: int) -> ModelSpec:
    return decoder(
        DecoderShape(
            model_type="gpt2",
            num_hidden_layers=shape.layers,
            hidden_size=shape.hidden,
            intermediate_size=4 * shape.hidden,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            vocab_size=50368,
            max_position_embeddings=seq_len,
            tie_word_embeddings=True,
        )
    )
