"""Rows of single-node fine-tuning: fsdp_qlora, LitGPT, torchtune and Qwen's profile of its own scripts."""

from dataclasses import dataclass, replace

from benchmarks.published.models import named_model
from benchmarks.published.parts import Conversion, Reading, cluster_for, measured, unused
from benchmarks.published.rows import MeasurementRow

from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Adapter, LoraTargets, Offload, Recipe

FSDP_QLORA_ASSUMPTIONS = (
    "pure bf16, adapters too; LoRA rank 64 on every linear layer (the script leaves out o_proj); AdamW, not fused",
    "full reentrant recomputation, FSDP full-shard, or no-shard where the table says DDP",
)

FSDP_QLORA_MODELS = {
    "Llama-2-7B": "Llama-2-7b",
    "Llama-2-70B": "Llama-2-70b",
    "Yi-34B": "Yi-34B",
    "Mistral-7B-v0.2": "Mistral-7B-v0.2",
}


def convert_fsdp_qlora(row: MeasurementRow) -> Conversion:
    """A RUNQLORA row: LoRA or QLoRA with FSDP on two consumer GPUs; the figure is peak reserved."""
    num_gpus, micro_batch, seq_len = (row.integer(name) for name in ("n_gpus", "micro_batch", "seq"))
    if not (num_gpus and micro_batch and seq_len):
        return unused(row, "batch or sequence length not stated")
    offload: Offload = "parameters" if "offload" in row.text("extra") else "none"
    plan = Plan(
        model=named_model(FSDP_QLORA_MODELS[row.text("model")]),
        cluster=cluster_for(gpu_label=row.text("gpu"), num_gpus=num_gpus),
        recipe=Recipe(
            seq_len=seq_len,
            micro_batch_size=micro_batch,
            global_batch_size=micro_batch * num_gpus,
            precision="bf16",
            recompute="full",
            offload=offload,
            attention="flash",
            compile=False,
            adapter="qlora" if "QLoRA" in row.text("strategy") else "lora",
            lora_rank=64,
            lora_targets="all-linear",
            lora_dropout_fraction=0.1,
        ),
        layout=_data_parallel(num_gpus, is_sharded="FSDP" in row.text("strategy")),
        engine="fsdp1",
    )
    reading = Reading(figure=row.text("peak_mem"), unit=row.text("peak_unit"), scope="reserved")
    return measured(row, plan, reading, assumptions=FSDP_QLORA_ASSUMPTIONS)


def _data_parallel(num_gpus: int, *, is_sharded: bool) -> Layout:
    if is_sharded:
        return Layout(dp_shard=num_gpus, zero_stage=3)
    return Layout(dp_replicate=num_gpus, zero_stage=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LitgptConfig:
    """What a file of LitGPT's config_hub sets for LoRA."""

    model: str
    rank: int
    targets: LoraTargets


LITGPT_HUB = {
    "falcon-7b": LitgptConfig(model="litgpt-falcon-7b", rank=32, targets="qv"),
    "gemma-7b": LitgptConfig(model="litgpt-gemma-7b", rank=16, targets="all-linear"),
    "gemma-2-9b": LitgptConfig(model="litgpt-gemma-2-9b", rank=16, targets="all-linear"),
    "llama-2-7b": LitgptConfig(model="Llama-2-7b", rank=32, targets="qv"),
    "llama-3-8b": LitgptConfig(model="Llama-3-8B", rank=32, targets="qv"),
    "llama-3.1-8b": LitgptConfig(model="Llama-3-8B", rank=32, targets="qv"),
    "llama-3.2-1b": LitgptConfig(model="litgpt-Llama-3.2-1B", rank=32, targets="qv"),
    "llama-3.2-3b": LitgptConfig(model="litgpt-Llama-3.2-3B", rank=32, targets="qv"),
    "mistral-7b": LitgptConfig(model="Mistral-7B-v0.1", rank=32, targets="qv"),
    "phi-2": LitgptConfig(model="litgpt-phi-2", rank=8, targets="all-linear"),
    "Phi-3-mini-4k-instruct": LitgptConfig(model="litgpt-phi-3-mini", rank=8, targets="all-linear"),
    "stablelm-base-alpha-3b": LitgptConfig(model="litgpt-stablelm-alpha-3b", rank=32, targets="qv"),
    "tiny-llama": LitgptConfig(model="litgpt-tiny-llama", rank=32, targets="all-linear"),
}
"""Settings of Lightning-AI/litgpt@2685705 config_hub/finetune/*/lora.yaml and qlora.yaml."""

LITGPT_TABLE = {
    "phi-1.5 1.3B": "litgpt-phi-1.5",
    "StableLM Alpha 3B": "litgpt-stablelm-alpha-3b",
    "Llama 2 7B": "Llama-2-7b",
    "Llama 2 13B": "Llama-2-13b",
    "Falcon 40B": "litgpt-falcon-40b",
}

LITGPT_ASSUMPTIONS = (
    "bf16-true: weights, gradients and AdamW states in bf16, AdamW with foreach temporaries",
    "no recomputation on one GPU; logits in bf16, the loss computed 128 tokens at a time",
    "the longest sample fills max_seq_length",
)


def convert_litgpt(row: MeasurementRow) -> Conversion:
    """A RUNLITGPT row of the config hub table or of the older resource tables."""
    if "Adapter" in row.text("strategy"):
        return unused(row, "LLaMA-Adapter prompts are not an adapter a recipe knows")
    if "FSDP" in row.text("strategy"):
        return unused(
            row, "peak set while loading: the checkpoint is read into fully gathered parameters on every rank"
        )
    if row.text("seq") == "512":
        return _litgpt_hub(row)
    return _litgpt_table(row)


def _litgpt_hub(row: MeasurementRow) -> Conversion:
    config = LITGPT_HUB[row.text("model")]
    num_gpus, strategy = row.integer("n_gpus") or 1, row.text("strategy")
    adapter: Adapter = "none" if "full" in strategy else ("qlora" if "qlora" in strategy else "lora")
    if adapter == "none" and num_gpus > 1:
        return unused(row, "full fine-tuning on four GPUs: the README says single-GPU, the label says data parallel")
    run = _LitgptRun(
        model=config.model,
        micro_batch=row.integer("micro_batch") or 1,
        seq_len=512,
        adapter=adapter,
        rank=config.rank,
        targets=config.targets,
    )
    return _litgpt(row, run)


def _litgpt_table(row: MeasurementRow) -> Conversion:
    run = _LitgptRun(
        model=LITGPT_TABLE[row.text("model")],
        micro_batch=row.integer("micro_batch") or 1,
        seq_len=row.integer("seq") or 0,
        adapter="qlora" if "nf4" in row.text("precision") else "lora",
        rank=8,
        targets="qv",
    )
    return _litgpt(row, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LitgptRun:
    model: str
    micro_batch: int
    seq_len: int
    adapter: Adapter
    rank: int
    targets: LoraTargets


def _litgpt(row: MeasurementRow, run: _LitgptRun) -> Conversion:
    plan = Plan(
        model=named_model(run.model),
        cluster=cluster_for(gpu_label=row.text("gpu"), num_gpus=1),
        recipe=Recipe(
            seq_len=run.seq_len,
            micro_batch_size=run.micro_batch,
            global_batch_size=run.micro_batch,
            precision="bf16",
            recompute="none",
            attention="flash",
            compile=False,
            adapter=run.adapter,
            lora_rank=run.rank,
            lora_targets=run.targets,
            lora_dropout_fraction=0.05,
            loss_chunks=-(-run.seq_len // 128),
        ),
        layout=Layout(zero_stage=0),
        engine="fsdp2",
    )
    if row.text("outcome") == "OOM":
        return measured(row, plan, None, outcome="oom", assumptions=LITGPT_ASSUMPTIONS)
    reading = Reading(figure=row.text("peak_mem"), unit=row.text("peak_unit"), scope="allocated")
    return measured(row, plan, reading, assumptions=LITGPT_ASSUMPTIONS)


TORCHTUNE_ASSUMPTIONS = (
    "pure bf16: weights, gradients and AdamW states; eight loss chunks where the row adds chunked cross-entropy",
    "peak active is read as peak allocated; the loss stays in eager mode",
)

TORCHTUNE_STEPS = {
    "+Packed dataset": Recipe(seq_len=4096, micro_batch_size=2, precision="bf16", compile=False),
    "+Compile": Recipe(seq_len=4096, micro_batch_size=2, precision="bf16", compile=True, fused_loss=False),
    "+Chunked cross entropy": Recipe(
        seq_len=4096, micro_batch_size=2, precision="bf16", compile=True, loss_chunks=8, fused_loss=False
    ),
    "+Activation checkpointing": Recipe(
        seq_len=4096,
        micro_batch_size=2,
        precision="bf16",
        compile=True,
        loss_chunks=8,
        fused_loss=False,
        recompute="full",
    ),
    "LoRA": Recipe(
        seq_len=4096,
        micro_batch_size=2,
        precision="bf16",
        compile=True,
        loss_chunks=8,
        fused_loss=False,
        recompute="full",
        activation_offload=True,
        adapter="lora",
        lora_rank=64,
        lora_targets="all-linear",
    ),
    "QLoRA": Recipe(
        seq_len=4096,
        micro_batch_size=2,
        precision="bf16",
        compile=True,
        loss_chunks=8,
        fused_loss=False,
        recompute="full",
        activation_offload=True,
        adapter="qlora",
        lora_rank=64,
        lora_targets="all-linear",
    ),
}
"""Rows of torchtune's table of techniques that a recipe can express, by their printed name."""


def convert_torchtune(row: MeasurementRow) -> Conversion:
    """A TUNE row: the table of techniques on one A100; the other tables do not print their memory settings."""
    if row.text("source_table") != 'README "Optimization flags"':
        return unused(row, _TORCHTUNE_LINKED)
    technique = row.text("notes").split('"')[1]
    if technique not in TORCHTUNE_STEPS:
        return unused(row, _TORCHTUNE_LEFT_OUT.get(technique, "technique unknown"))
    reading = Reading(figure=row.text("peak_mem"), unit=row.text("mem_unit"), scope="allocated")
    return measured(row, _torchtune_plan(TORCHTUNE_STEPS[technique]), reading, assumptions=TORCHTUNE_ASSUMPTIONS)


_TORCHTUNE_LINKED = "optimizer, recomputation and offload are those of a linked config, not printed with the row"

_TORCHTUNE_LEFT_OUT = {
    "Baseline": "samples of variable length, not packed",
    "+Optimizer step in backward": "the optimizer step fused into backward is not a recipe field",
    "+Activation offloading": "the optimizer step fused into backward is not a recipe field",
    "+8-bit AdamW": "the optimizer step fused into backward is not a recipe field",
}


def convert_torchtune_run(row: MeasurementRow) -> Conversion:
    """A RUNTUNE row: the same table of techniques in ``runs.csv``."""
    technique = row.text("extra")
    match = next((step for step in TORCHTUNE_STEPS if step.lower() == technique.lower()), None)
    if match is None:
        return unused(row, _TORCHTUNE_LINKED)
    reading = Reading(figure=row.text("peak_mem"), unit=row.text("peak_unit"), scope="allocated")
    return measured(row, _torchtune_plan(TORCHTUNE_STEPS[match]), reading, assumptions=TORCHTUNE_ASSUMPTIONS)


def _torchtune_plan(recipe: Recipe) -> Plan:
    return Plan(
        model=named_model("Llama-3.2-3B"),
        cluster=cluster_for(gpu_label="A100-80GB", num_gpus=1),
        recipe=replace(recipe, global_batch_size=2),
        layout=Layout(zero_stage=0),
        engine="fsdp2",
    )


QWEN_ASSUMPTIONS = (
    "LoRA rank 64 on every linear layer with fp32 adapters as PEFT makes them, full recomputation, batch 1",
    "the printed G is GB or GiB of peak allocated memory; the tool is not stated",
)


def convert_qwen(row: MeasurementRow) -> Conversion:
    """A QWEN1 row: the LoRA and Q-LoRA columns on one A100, and LoRA with ZeRO stage 3 on four."""
    task = row.text("task")
    if task == "LoRA (emb)":
        return unused(row, "trains embedding and output layer beside LoRA; not an adapter a recipe knows")
    if not row.text("d_peak_gib_min"):
        return unused(row, "the printed figure is a sum over GPUs, by its size; per-GPU memory is not stated")
    if task == "Full-parameter":
        return unused(row, "ZeRO stage and optimizer placement of the single-GPU DeepSpeed run are not stated")
    seq_len = row.integer("seq_len")
    if not seq_len:
        return unused(row, "sequence length not stated")
    plan = Plan(
        model=named_model(row.text("model")),
        cluster=cluster_for(gpu_label=row.text("gpu"), num_gpus=1),
        recipe=Recipe(
            seq_len=seq_len,
            micro_batch_size=1,
            global_batch_size=8,
            precision="bf16-mixed" if task == "LoRA" else "fp16-mixed",
            recompute="full",
            attention="flash",
            compile=False,
            adapter="lora" if task == "LoRA" else "qlora",
            lora_rank=64,
            lora_targets="all-linear",
            lora_dropout_fraction=0.05,
        ),
        layout=Layout(zero_stage=0),
        engine="accelerate",
    )
    reading = Reading(figure=row.text("peak_mem"), unit=row.text("mem_unit"), scope="unknown")
    return measured(row, plan, reading, assumptions=QWEN_ASSUMPTIONS)
