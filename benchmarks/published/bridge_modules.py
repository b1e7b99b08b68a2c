"""Megatron-Bridge's studies of recomputation by module: Moonlight on eight H100, one set of modules a row."""

from typing import get_args

from benchmarks.published.parts import Conversion, Reading, cluster_for, measured, unused
from benchmarks.published.rows import MeasurementRow

from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe, RecomputeModule

MODULES: tuple[RecomputeModule, ...] = get_args(RecomputeModule)
STUDIED = "Moonlight-16B-A3B"
OTHERS = (
    "CUDA graphs (Nemotron, Llama), 8-bit parameters and packed samples (Llama), which no recipe says; or "
    "batch not printed"
)
MOONLIGHT_ASSUMPTIONS = (
    "precision-aware optimizer with bf16 gradients and moments, fused loss, sequence parallelism: the recipe file",
    "tokens routed evenly, though the file does not force it",
)


def recomputed_modules(text: str) -> tuple[RecomputeModule, ...]:
    """Modules that a row says are recomputed.

    >>> recomputed_modules("selective: moe_act, layernorm"), recomputed_modules("none")
    (('layernorm', 'moe_act'), ())
    """
    granularity, _, given = text.partition(":")
    names = {name.strip() for name in given.split(",")} if granularity == "selective" else set()
    return tuple(module for module in MODULES if module in names)


def convert_modules(row: MeasurementRow) -> Conversion:
    """The memory of an MBSKILL row."""
    plan = _plan(row)
    if plan is None:
        return unused(row, OTHERS)
    reading = Reading(figure=row.text("peak_mem"), unit=row.text("mem_unit"), scope="allocated")
    return measured(row, plan, reading, assumptions=MOONLIGHT_ASSUMPTIONS)


def _plan(row: MeasurementRow) -> Plan | None:
    degrees = [row.integer(name) for name in ("dp", "tp", "ep", "seq_len", "micro_batch", "global_batch", "n_gpus")]
    dp, tp, ep, seq_len, micro_batch, global_batch, num_gpus = (number or 0 for number in degrees)
    if row.text("model") != STUDIED or not all(degrees):
        return None
    modules = recomputed_modules(row.text("recompute"))
    return Plan(
        model=read_model("moonlight-16b-a3b"),
        cluster=cluster_for(gpu_label=row.text("gpu"), num_gpus=num_gpus),
        recipe=Recipe(
            seq_len=seq_len,
            micro_batch_size=micro_batch,
            global_batch_size=global_batch,
            precision="bf16-mixed",
            recompute="selective" if modules else "none",
            recompute_modules=modules or None,
            attention="flash",
            compile=False,
            fused_loss=True,
            reduce_dtype="bf16",
            moment_dtype="bf16",
        ),
        layout=Layout(dp_shard=dp, zero_stage=1, tp=tp, ep=ep, sequence_parallel=tp > 1),
        engine="megatron",
    )
