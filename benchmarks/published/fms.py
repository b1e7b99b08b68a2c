"""Rows of fms-acceleration's tables: Hugging Face Trainer on one to four A100, plain or with fused kernels."""

from benchmarks.published.models import named_model
from benchmarks.published.parts import Conversion, Reading, cluster_for, measured, unused
from benchmarks.published.rows import MeasurementRow

from shardwise.engines.table import EngineName
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Adapter, Precision, Recipe

ASSUMPTIONS = (
    "weights in torch_dtype; under FSDP with Trainer bf16 or fp16 the trainable ones are upcast to fp32",
    "LoRA rank 16 on q, k, v, o; adapters in fp32 as PEFT casts them; full recomputation; FlashAttention-2",
    "AdamW with foreach temporaries; 4-bit bases are NF4 with double quantisation, or GPTQ of the same size",
    "LoRA dropout 0.1; foak computes the loss in one kernel; liger, on Llama 3, head and loss in pieces",
    "samples are packed to the context length",
)

MODELS = {
    "gpt_bigcode-santacoder": "santacoder",
    "Mistral-7B-v0.1": "Mistral-7B-v0.1",
    "Mistral-7B-v0.1-GPTQ": "Mistral-7B-v0.1",
    "Mixtral-8x7B-Instruct-v0.1": "Mixtral-8x7B",
    "Mixtral-8x7B-Instruct-v0.1-GPTQ": "Mixtral-8x7B",
    "Llama-2-70b-hf": "Llama-2-70b",
    "Llama-2-70B-GPTQ": "Llama-2-70b",
    "Meta-Llama-3-8B": "Llama-3-8B",
    "Meta-Llama-3-8B-GPTQ": "Llama-3-8B",
}


LIGER_CHUNKS = 32
"""Pieces Liger computes a 128,256-word head and loss in at width 4,096: ceil(V / h) to a power of two."""


def convert_run(row: MeasurementRow) -> Conversion:
    """A RUNFMS row: full, LoRA or 4-bit LoRA fine-tuning on one GPU, or FSDP full-shard on two or four."""
    num_gpus, micro_batch, seq_len = (row.integer(name) for name in ("n_gpus", "micro_batch", "seq"))
    if not (num_gpus and micro_batch and seq_len):
        return unused(row, "batch or sequence length not stated")
    framework = row.text("extra").partition(";")[0]
    if framework == "baseline-peft-bnb" and num_gpus == 1:
        return unused(row, "prepare_model_for_kbit_training casts embeddings and norms to fp32; a recipe cannot")
    is_oom = row.text("outcome") == "OOM"
    model = named_model(MODELS[row.text("model")])
    has_chunked_head = framework.endswith("liger") and "Llama-3" in row.text("model")
    plan = Plan(
        model=model,
        cluster=cluster_for(gpu_label=row.text("gpu"), num_gpus=num_gpus),
        recipe=Recipe(
            seq_len=seq_len,
            micro_batch_size=micro_batch,
            global_batch_size=micro_batch * num_gpus,
            precision=_precision(row, num_gpus=num_gpus),
            recompute="full",
            attention="flash",
            compile=False,
            adapter=_adapter(row),
            lora_rank=16,
            lora_targets="attention",
            lora_dropout_fraction=0.0 if _adapter(row) == "none" else 0.1,
            fused_loss=True if "foak" in framework and not has_chunked_head else None,
            loss_chunks=LIGER_CHUNKS if has_chunked_head else 1,
        ),
        layout=Layout(dp_shard=num_gpus, zero_stage=3 if num_gpus > 1 else 0),
        engine=_engine(num_gpus),
    )
    if is_oom:
        return measured(row, plan, None, outcome="oom", assumptions=ASSUMPTIONS)
    reading = Reading(figure=row.text("peak_mem"), unit=row.text("peak_unit"), scope="allocated")
    return measured(row, plan, reading, assumptions=ASSUMPTIONS)


def _engine(num_gpus: int) -> EngineName:
    return "accelerate" if num_gpus == 1 else "fsdp1"


def _adapter(row: MeasurementRow) -> Adapter:
    if "LoRA" not in row.text("strategy"):
        return "none"
    return "qlora" if "4-bit" in row.text("precision") else "lora"


def _precision(row: MeasurementRow, *, num_gpus: int) -> Precision:
    """Mixed where some weights are fp32: upcast by FSDP, or PEFT's adapters; frozen weights keep torch_dtype."""
    text = row.text("precision")
    if "torch_dtype float16" in text:
        return "fp16-mixed"
    is_upcast = num_gpus > 1 and "Trainer bf16=True" in text
    return "bf16-mixed" if is_upcast or _adapter(row) != "none" else "bf16"
