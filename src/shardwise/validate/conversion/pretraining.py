"""Rows of other pre-training stacks: InternEvo, Colossal-AI, llm-foundry and Megatron-Bridge."""

from dataclasses import dataclass, replace
from typing import Literal

from shardwise.layout import Layout, ZeroStage
from shardwise.model import ModelSpec
from shardwise.plan import EngineName, Plan
from shardwise.recipe import Precision, Recipe
from shardwise.validate.conversion.models import named_model
from shardwise.validate.conversion.parts import (
    Conversion,
    DecoderShape,
    Reading,
    cluster_for,
    decoder,
    measured,
    row_shape,
    unused,
)
from shardwise.validate.rows import MeasurementRow

INTERNEVO_ASSUMPTIONS = (
    "InternLM-7B of configs/7B_sft.py: 103,168 tokens, sequence length 2,048, no sequence parallelism, FlashAttention",
    "bf16 with fp32 master weights; fsdp=False shards optimizer states over data-parallel ranks as ZeRO stage 1 does",
    "the tool behind the figure is not stated; read as peak allocated memory",
)

INTERNEVO_SEQ_LEN = 2048


def convert_internevo(row: MeasurementRow) -> Conversion:
    """An EVOMEM row: InternLM-7B or 20B on 3 to 16 A800 with checkpointing."""
    num_gpus, tp, pp, dp = (row.integer(name) for name in ("n_gpus", "tp", "pp", "dp"))
    if not (num_gpus and tp and pp and dp):
        return unused(row, "layout not stated")
    if not row.text("n_layers"):
        return unused(row, "the 20B model is named neither InternLM nor InternLM2; shape not stated")
    is_fsdp = "fsdp" in row.text("shard")
    if is_fsdp and dp == 1:
        return unused(row, "fsdp=True with one data-parallel rank: what is sharded over tp is not stated")
    zero_stage: ZeroStage = 3 if is_fsdp else 1
    engine: EngineName = "fsdp1" if is_fsdp else "deepspeed"
    plan = Plan(
        model=named_model("InternLM-7B"),
        cluster=cluster_for(gpu_label=row.text("gpu"), num_gpus=num_gpus),
        recipe=Recipe(
            seq_len=INTERNEVO_SEQ_LEN,
            micro_batch_size=1,
            global_batch_size=4 * dp,
            precision="bf16-mixed",
            recompute="full",
            attention="flash",
            compile=False,
        ),
        layout=Layout(dp_shard=dp, zero_stage=zero_stage, tp=tp, pp=pp),
        engine=engine,
    )
    reading = Reading(figure=row.text("peak_mem"), unit=row.text("mem_unit"), scope="unknown")
    return measured(row, plan, reading, assumptions=INTERNEVO_ASSUMPTIONS)


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
        ),
        layout=Layout(dp_shard=num_gpus, zero_stage=2 if "SHARD_GRAD_OP" in row.text("strategy") else 3),
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


BRIDGE_ASSUMPTIONS = (
    "the figure is Megatron's max allocated; sequence parallelism wherever tp > 1, as the recipes set it",
    "selective recomputation of core attention costs nothing more with fused attention",
)

_BridgeRecompute = Literal["none", "selective"]

BRIDGE_RECOMPUTE: dict[str, _BridgeRecompute] = {"none": "none", "selective: core_attn": "selective"}

BRIDGE_FRAGMENTED = ("MBSKILL-013",)
"""Ran out of memory by fragmentation and passed with expandable segments; the figure counts, the outcome does not."""


def convert_bridge_skill(row: MeasurementRow) -> Conversion:
    """An MBSKILL row: the matched Moonlight and Llama 3 70B studies; the others leave out batch or recomputation."""
    if row.text("recompute") not in BRIDGE_RECOMPUTE:
        return unused(row, "recomputes modules that a recipe cannot name, or does not say what it recomputes")
    tp, pp, vpp, ep = (row.integer(name) or 1 for name in ("tp", "pp", "vpp", "ep"))
    num_gpus, seq_len, global_batch = (row.integer(name) for name in ("n_gpus", "seq_len", "global_batch"))
    model = _bridge_model(row)
    if model is None or not (num_gpus and seq_len and global_batch):
        return unused(row, "model shape, batch or sequence length not stated")
    plan = Plan(
        model=model,
        cluster=cluster_for(gpu_label=row.text("gpu"), num_gpus=num_gpus),
        recipe=Recipe(
            seq_len=seq_len,
            micro_batch_size=1,
            global_batch_size=global_batch,
            precision="fp8-mixed" if "fp8" in row.text("precision") else "bf16-mixed",
            recompute=BRIDGE_RECOMPUTE[row.text("recompute")],
            attention="flash",
            compile=False,
            fused_loss=True,
        ),
        layout=Layout(
            dp_shard=num_gpus // (tp * pp),
            zero_stage=1,
            tp=tp,
            pp=pp,
            vpp=vpp,
            ep=ep,
            schedule="interleaved" if vpp > 1 else "1f1b",
            sequence_parallel=tp > 1,
        ),
        engine="megatron",
    )
    runs = measured(
        row,
        plan,
        Reading(figure=row.text("peak_mem"), unit=row.text("mem_unit"), scope="allocated"),
        assumptions=BRIDGE_ASSUMPTIONS,
    )
    return tuple(replace(run, decides_outcome=run.id not in BRIDGE_FRAGMENTED) for run in runs)


def _bridge_model(row: MeasurementRow) -> ModelSpec | None:
    if row.text("model") == "Moonlight-16B-A3B":
        return named_model("Moonlight-16B-A3B")
    shape = row_shape(row)
    return decoder(shape) if shape and row.text("arch") == "dense" else None
