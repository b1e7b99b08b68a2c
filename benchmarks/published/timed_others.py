"""Rates measured on llm-foundry, BigScience's Megatron-DeepSpeed and the flash-attention training scripts."""

from dataclasses import dataclass, replace

from benchmarks.published.bigscience import bloom_plan, has_blocking_launches
from benchmarks.published.parts import DecoderShape, decoder, unused
from benchmarks.published.pretraining import MPT_ASSUMPTIONS
from benchmarks.published.rows import MeasurementRow
from benchmarks.published.timed_parts import TimedConversion, machines, megatron_gpt, timed

from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Precision, Recipe
from shardwise.validate.records import UnusedRow

FOUNDRY_NETWORKS = {"RoCE 1600 Gb/s per node": "roce-200"}
"""Eight 200 Gb/s adapters a node."""

LARGE_SCALE_TABLE = "H100 80GB BF16 (Large Scale, >= 128 GPUs)"
FLASH_2_MODELS = ("MPT-1b", "MPT-3b", "MPT-7b", "MPT-70b")
"""mosaicml/llm-foundry@5e85bd6 scripts/train/benchmarking/sweep.py: only these runs of the last table asked for
``--attn_impl flash``, with flash-attn 2.4.2; its 13B and 30B runs and the tables of 2023-10 ran the Triton kernels of
version 1, then the default of submit_benchmarks.py."""

H100_NETWORK = "the network of the H100 nodes is not stated; 400 Gb/s InfiniBand per GPU is assumed"


def convert_foundry(row: MeasurementRow) -> TimedConversion:
    """An LLMF row: MPT under FSDP 1 on A100 and H100."""
    layers, hidden, heads, seq_len = (row.integer(name) for name in ("n_layers", "d_model", "n_heads", "seq_len"))
    num_gpus, micro_batch, global_batch = (row.integer(name) for name in ("n_gpus", "micro_batch", "global_batch"))
    if not (layers and hidden and heads and seq_len and num_gpus and micro_batch and global_batch):
        return unused(row, "shape or batch not stated")
    per_step = micro_batch * num_gpus
    network = FOUNDRY_NETWORKS.get(row.text("interconnect"), "ib-ndr")
    plan = Plan(
        model=decoder(
            DecoderShape(
                model_type="gpt2",
                num_hidden_layers=layers,
                hidden_size=hidden,
                intermediate_size=4 * hidden,
                num_attention_heads=heads,
                num_key_value_heads=heads,
                vocab_size=50_368,
                max_position_embeddings=seq_len,
                tie_word_embeddings=True,
            )
        ),
        cluster=machines(gpu_label=row.text("gpu"), num_gpus=num_gpus, network=network),
        recipe=Recipe(
            seq_len=seq_len,
            micro_batch_size=micro_batch,
            global_batch_size=max(per_step, global_batch - global_batch % per_step),
            precision=_foundry_precision(row.text("precision")),
            recompute="full" if row.text("recompute").startswith("full") else "none",
            attention="flash",
            attention_kernel=None if _has_flash_2(row) else "fa1",
            compile=False,
            fused_loss=True,
        ),
        layout=Layout(dp_shard=num_gpus, zero_stage=3, reshard_after_forward=not row.text("shard").startswith("zero2")),
        engine="fsdp1",
    )
    notes = () if row.text("interconnect") else (H100_NETWORK,)
    return timed(row, plan, assumptions=(*MPT_ASSUMPTIONS, *notes))


def _has_flash_2(row: MeasurementRow) -> bool:
    return row.text("source_table") == LARGE_SCALE_TABLE and row.text("model") in FLASH_2_MODELS


def _foundry_precision(text: str) -> Precision:
    if text.startswith("fp8"):
        return "fp8-mixed"
    return "bf16" if text.startswith("pure") else "bf16-mixed"


def convert_timed_bloom(row: MeasurementRow) -> TimedConversion:
    """A BLOOMT row: sweeps of layouts before BLOOM's training, on Jean Zay."""
    plan = bloom_plan(row)
    if isinstance(plan, UnusedRow):
        return plan
    if plan.layout.world_size != (row.integer("n_gpus") or 0):
        return unused(row, "the printed degrees do not multiply to the printed GPUs")
    cluster = machines(
        gpu_label=row.text("gpu"), num_gpus=plan.layout.world_size, network="opa-100", node_gbit_per_s=400
    )
    recipe = replace(plan.recipe, blocking_launches=has_blocking_launches(row.id))
    assumptions = (
        "four Omni-Path 100 adapters a node",
        "CUDA_LAUNCH_BLOCKING=1 from the topology sweeps on, where large jobs hung without it",
        "full recomputation of every block, fused softmax but no flash attention, BLOOM's architecture",
        "one reading of the second iteration; the author warns of fluctuation",
    )
    repeated = replace(plan, cluster=cluster, recipe=recipe)
    return timed(row, repeated, assumptions=assumptions, variant=row.text("source_table"))


def convert_timed_tr8(row: MeasurementRow, plan: Plan) -> TimedConversion:
    """A TR8 row with the plan that its memory is predicted with: V100 nodes of four, four Omni-Path adapters."""
    cluster = machines(
        gpu_label=row.text("gpu"),
        num_gpus=plan.layout.world_size,
        network="opa-100",
        gpus_per_node=4,
        node_gbit_per_s=400,
    )
    return timed(row, replace(plan, cluster=cluster), assumptions=("four Omni-Path 100 adapters a node",))


@dataclass(frozen=True, slots=True, kw_only=True)
class _FlashRun:
    hidden_size: int
    num_layers: int
    num_heads: int
    micro_batch_size: int
    zero_stage: int


FLASH_RUNS = {
    "GPT3-125M": _FlashRun(hidden_size=768, num_layers=12, num_heads=12, micro_batch_size=32, zero_stage=0),
    "GPT3-355M": _FlashRun(hidden_size=1024, num_layers=24, num_heads=16, micro_batch_size=32, zero_stage=0),
    "GPT3-760M": _FlashRun(hidden_size=1536, num_layers=24, num_heads=16, micro_batch_size=16, zero_stage=1),
    "GPT3-1.3B": _FlashRun(hidden_size=2048, num_layers=24, num_heads=16, micro_batch_size=8, zero_stage=1),
    "GPT3-2.7B": _FlashRun(hidden_size=2560, num_layers=32, num_heads=20, micro_batch_size=4, zero_stage=1),
}
"""Dao-AILab/flash-attention training/configs/experiment/pile/*.yaml at 80 GB of GPU memory."""


def convert_flash_training(row: MeasurementRow) -> TimedConversion:
    """A FATRAIN row: GPT-3 sizes on 8 A100 with FlashAttention, fused layers and data parallelism."""
    run, global_batch = FLASH_RUNS.get(row.text("model")), row.integer("global_batch")
    if run is None or not global_batch:
        return unused(row, "shape or batch not stated")
    shape = megatron_gpt(
        hidden_size=run.hidden_size, num_layers=run.num_layers, num_heads=run.num_heads, vocab_size=50_264
    )
    plan = Plan(
        model=decoder(shape),
        cluster=machines(gpu_label=row.text("gpu"), num_gpus=8, network="ib-hdr"),
        recipe=Recipe(
            seq_len=2048,
            micro_batch_size=run.micro_batch_size,
            global_batch_size=global_batch,
            precision="bf16-mixed",
            attention="flash",
            attention_kernel="fa1",
            compile=False,
            fused_loss=True,
        ),
        layout=Layout(dp_shard=8, zero_stage=1) if run.zero_stage else Layout(dp_replicate=8, zero_stage=0),
        engine="megatron",
    )
    assumptions = (
        "micro-batch, heads and optimizer sharding of the repository's configs for 80 GB",
        "fused dropout, norm, bias and loss kernels, as Megatron's profile has them",
    )
    return timed(row, plan, assumptions=assumptions)


GPTQ = "4-bit weights of GPTQ, whose kernels of 2023 are slower than bitsandbytes', which a plan means"
"""QwenLM/Qwen README: Q-LoRA starts from the Int4 checkpoints, which AutoGPTQ made and runs."""


def convert_timed_qwen(row: MeasurementRow, plan: Plan) -> TimedConversion:
    """A QWEN1 row with the plan that its memory is predicted with."""
    gaps = (GPTQ,) if plan.recipe.adapter == "qlora" else ()
    return timed(row, plan, assumptions=("the plan of the row's memory reading",), gaps=gaps)


def convert_with_memory_plan(row: MeasurementRow, plan: Plan) -> TimedConversion:
    """A row of single-node fine-tuning with the plan that its memory is predicted with."""
    return timed(row, plan, assumptions=("the plan of the row's memory reading",))
