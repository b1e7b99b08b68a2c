"""Rows measured on torchtitan: its benchmark page, its paper and the history of its performance page."""

from dataclasses import dataclass, replace

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
from shardwise.plan import Plan
from shardwise.recipe import Precision, Recipe, Recompute
from shardwise.schedules.table import Schedule
from shardwise.validate.records import UnusedRow

ASSUMPTIONS = (
    "the pipeline runs as many micro-batches as it has stages, torchtitan's default at commit 9dec370",
    "layers are split as torchtitan's generate_split_points splits them at commit 9dec370",
    "logits in fp32; the loss is compiled from April 2025 on and AdamW fused from March 2025 on, not before",
)

LLAMA_SHAPES = {
    "llama-3.1-8b": DecoderShape(
        model_type="llama",
        num_hidden_layers=32,
        hidden_size=4096,
        intermediate_size=14336,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=128256,
    ),
    "llama-3-70b": DecoderShape(
        model_type="llama",
        num_hidden_layers=80,
        hidden_size=8192,
        intermediate_size=28672,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
    ),
    "llama-2-70b": DecoderShape(
        model_type="llama",
        num_hidden_layers=80,
        hidden_size=8192,
        intermediate_size=28672,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=32000,
    ),
    "llama-3.1-405b": DecoderShape(
        model_type="llama",
        num_hidden_layers=126,
        hidden_size=16384,
        intermediate_size=53248,
        num_attention_heads=128,
        num_key_value_heads=8,
        vocab_size=128256,
    ),
}

RECOMPUTE: dict[str, Recompute] = {
    "selective op (SAC)": "selective",
    "selective-op": "selective",
    "full": "full",
    "none": "none",
}


OPTIMIZER_FUSED_SINCE = "2025-03"
"""Month from which AdamW is fused by default (pytorch/torchtitan@6e49885, 2025-02-24)."""
LOSS_COMPILED_SINCE = "2025-04"
"""Month from which ``compile`` compiles the loss too (pytorch/torchtitan@bbb1b61, 2025-04-02)."""
ENDS_WRAPPED_SINCE = "2025-08"
"""Month from which token table and head are FSDP units of their own (pytorch/torchtitan@83e6941, 2025-07-28)."""

GROUPS_TOLD_SINCE = "2026-02"
"""Month from which kernels of attention are told of grouped heads (pytorch/torchtitan@ff0829c, 2026-01-27)."""

CONTRADICTED = ("TTPAPER-009", "TTPAPER-010")
"""The paper prints 16 stages where the repository prints 8 for a run of the same size, batch and rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What both tables state, in our words."""

    shape: DecoderShape
    gpu_label: str
    num_gpus: int
    seq_len: int
    local_batch: int
    layout: Layout
    recompute: Recompute
    precision: Precision
    compile: bool
    date: str = ""
    """Month of the run, as the source states it; empty is before every change below."""


def convert_row(row: MeasurementRow) -> Conversion:
    """A TTITAN, TTPAPER, TTH200 or TORCHAO row."""
    plan = titan_plan(row)
    if isinstance(plan, UnusedRow):
        return plan
    if "sets expandable_segments" in row.text("notes"):
        plan = replace(plan, recipe=replace(plan.recipe, expandable_segments=True))
    reading = Reading(figure=row.text("peak_mem"), unit=row.text("mem_unit"), scope="reserved")
    return measured(row, plan, reading, assumptions=ASSUMPTIONS)


def titan_plan(row: MeasurementRow) -> Plan | UnusedRow:
    """The plan of a row of torchtitan's own tables, for its memory and its rate."""
    if row.id in CONTRADICTED:
        return unused(row, "paper and repository print different layouts, 16 and 8 stages, for a run of the same rate")
    if row.text("recompute") not in RECOMPUTE:
        return unused(row, "recomputation of every second layer cannot be expressed in a recipe")
    shape = row_shape(row)
    dp, tp, pp, cp = (row.integer(name) or 1 for name in ("dp", "tp", "pp", "cp"))
    global_batch, num_gpus, seq_len = (row.integer(name) for name in ("global_batch", "n_gpus", "seq_len"))
    if shape is None or not (global_batch and num_gpus and seq_len):
        return unused(row, "model shape, batch or sequence length not stated")
    schedule: Schedule = "interleaved" if row.text("pp_schedule") == "Interleaved 1F1B" else "1f1b"
    run = _Run(
        shape=shape,
        gpu_label=row.text("gpu"),
        num_gpus=num_gpus,
        seq_len=seq_len,
        local_batch=global_batch // dp,
        layout=_layout(dp=dp, tp=tp, pp=pp, cp=cp, schedule=schedule, layers=shape.num_hidden_layers),
        recompute=RECOMPUTE[row.text("recompute")],
        precision="fp8-mixed" if "float8" in row.text("precision") else "bf16-mixed",
        compile=row.text("compile") == "yes",
        date=row.text("source_date"),
    )
    return _plan(run)


def convert_run(row: MeasurementRow) -> Conversion:
    """A ``runs.csv`` row from torchtitan's benchmark page or the history of its performance page."""
    if row.text("act_ckpt") not in RECOMPUTE:
        return unused(row, "recomputation of every second layer cannot be expressed in a recipe")
    dp, tp, pp, cp = (row.integer(name) or 1 for name in ("shard_dp", "tp", "pp", "cp"))
    shape = LLAMA_SHAPES[row.text("model")]
    local_batch = row.integer("micro_batch") or int(row.text("micro_batch").removeprefix("local batch "))
    run = _Run(
        shape=shape,
        gpu_label=row.text("gpu"),
        num_gpus=row.integer("n_gpus") or 1,
        seq_len=row.integer("seq") or 0,
        local_batch=local_batch,
        layout=_layout(dp=max(1, dp // cp), tp=tp, pp=pp, cp=cp, schedule="1f1b", layers=shape.num_hidden_layers),
        recompute=RECOMPUTE[row.text("act_ckpt")],
        precision="fp8-mixed" if "float8" in row.text("precision") + row.text("extra") else "bf16-mixed",
        compile="compile" in row.text("extra"),
    )
    if row.text("outcome") == "OOM":
        return measured(row, _plan(run), None, outcome="oom", assumptions=ASSUMPTIONS)
    figure = row.text("peak_mem")
    reading = Reading(figure=figure, unit=row.text("peak_unit"), scope="reserved") if figure else None
    return measured(row, _plan(run), reading, assumptions=ASSUMPTIONS)


def _plan(run: _Run) -> Plan:
    layout = run.layout
    return Plan(
        model=decoder(replace(run.shape, max_position_embeddings=max(run.seq_len, 8192))),
        cluster=cluster_for(gpu_label=run.gpu_label, num_gpus=run.num_gpus),
        recipe=Recipe(
            seq_len=run.seq_len,
            micro_batch_size=run.local_batch // layout.pp,
            global_batch_size=run.local_batch * layout.data_parallel_size,
            precision=run.precision,
            recompute=run.recompute,
            attention="flash",
            compile=run.compile,
            fused_loss=None if run.date >= LOSS_COMPILED_SINCE else False,
            repeat_kv_heads=run.date < GROUPS_TOLD_SINCE
            and run.shape.num_key_value_heads < run.shape.num_attention_heads,
            wrap_ends=None if run.date >= ENDS_WRAPPED_SINCE else False,
            fused_optimizer=None if run.date >= OPTIMIZER_FUSED_SINCE else False,
        ),
        layout=layout,
        engine="torchtitan",
    )


def _layout(*, dp: int, tp: int, pp: int, cp: int, schedule: Schedule, layers: int) -> Layout:
    vpp = 2 if schedule == "interleaved" else 1
    return Layout(
        dp_shard=dp,
        zero_stage=3,
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=vpp,
        schedule=schedule,
        sequence_parallel=tp > 1,
        stage_layers=split_layers(num_layers=layers, pp=pp, vpp=vpp) if pp > 1 else None,
        reshard_after_forward=pp == 1,
    )


def split_layers(*, num_layers: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Layers of each pipeline rank as torchtitan splits them: even, extra layers to the chunks after the first.

    Source: pytorch/torchtitan@9dec370 torchtitan/parallelisms/pipelining_utils.py, generate_split_points.

    >>> split_layers(num_layers=126, pp=8, vpp=1)
    (15, 16, 16, 16, 16, 16, 16, 15)
    """
    chunks = pp * vpp
    base, extra = divmod(num_layers, chunks)
    sizes = [base + (0 < index <= extra) for index in range(chunks - 1)]
    sizes.append(num_layers - sum(sizes))
    return tuple(sum(sizes[rank::pp]) for rank in range(pp))
