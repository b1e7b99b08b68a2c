"""Rates of the performance pages of NVIDIA's NeMo Framework: Megatron-Core with 8-bit products on H100, B200, GB200."""

from functools import lru_cache

from benchmarks.published.parts import DecoderShape, decoder, row_shape, unused
from benchmarks.published.rows import MeasurementRow
from benchmarks.published.timed_nemo import nvidia_cluster, printed_layout
from benchmarks.published.timed_parts import TimedConversion, printed_gpt, timed

from shardwise.families import read_model
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.recipe import Adapter, Recipe

CATALOGUED = {
    "Nemotron-4-15B": "nemotron-4-15b",
    "Mixtral-8x7B": "mixtral-8x7b",
    "Mixtral-8x22B": "mixtral-8x22b",
}
"""Catalogue name of a printed model whose shape columns alone do not fix it."""

ASSUMPTIONS = (
    "no recomputation, gradients reduced in bf16: NeMo's recommended configurations and performance scripts",
    "user buffers in pretraining, as NeMo's performance scripts set them (scripts/performance/llm/pretrain_*.py, 2025)",
    "distributed optimizer; per-tensor fp8 with delayed or current scaling is one precision to a plan",
    "LoRA of rank 32 on query, key and value; documents packed into a sequence count as one",
)


@lru_cache
def _catalogued(name: str) -> ModelSpec:
    return read_model(CATALOGUED[name])


def _model(row: MeasurementRow) -> ModelSpec | None:
    name = row.text("model")
    if name in CATALOGUED:
        return _catalogued(name)
    shape = row_shape(row)
    if shape is None:
        return None
    if name.startswith("GPT3"):
        gpt = printed_gpt(row)
        return decoder(gpt) if gpt else None
    return decoder(_nemotron(shape) if name.startswith("Nemotron") else shape)


def _nemotron(shape: DecoderShape) -> DecoderShape:
    """Nemotron's blocks have squared ReLU without a gate, so two matrices instead of three."""
    return DecoderShape(
        model_type="nemotron",
        num_hidden_layers=shape.num_hidden_layers,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        vocab_size=shape.vocab_size,
        max_position_embeddings=shape.max_position_embeddings,
    )


def convert_framework(row: MeasurementRow) -> TimedConversion:
    """A NEMO row: pretraining, or fine-tuning on packed documents."""
    if row.text("task") != "pretrain" and (row.integer("pp") or 1) > 1:
        return unused(row, "virtual stages not stated")
    model = _model(row)
    num_gpus, micro_batch, global_batch, seq_len, dp = (
        row.integer(name) for name in ("n_gpus", "micro_batch", "global_batch", "seq_len", "dp")
    )
    if model is None or not (num_gpus and micro_batch and global_batch and seq_len and dp):
        return unused(row, "shape or batch not stated")
    adapter: Adapter = "lora" if row.text("task") == "LoRA" else "none"
    plan = Plan(
        model=model,
        cluster=nvidia_cluster(row.text("gpu"), num_gpus),
        recipe=Recipe(
            seq_len=seq_len,
            micro_batch_size=micro_batch,
            global_batch_size=global_batch,
            precision="fp8-mixed",
            attention="flash",
            compile=False,
            adapter=adapter,
            lora_rank=32,
            lora_targets="attention",
            fused_loss=True,
            reduce_dtype="bf16",
        ),
        layout=printed_layout(row, has_user_buffers=row.text("task") == "pretrain"),
        engine="megatron",
    )
    return timed(row, plan, assumptions=ASSUMPTIONS)
