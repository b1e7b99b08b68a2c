"""Rows measured on Megatron-LM: SimuMax's B200 table, the zero-bubble paper and Megatron-Bridge's skill pages."""

from dataclasses import replace

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
from shardwise.recipe import Recipe
from shardwise.schedules.table import Schedule

SIMUMAX_VOCAB_SIZE = 128_257
"""``--vocab-size 128256`` with NullTokenizer, which adds an end-of-document id."""

SIMUMAX_405B_KEY_VALUE_HEADS = 16
"""``num_query_groups=16`` in run_pretrain_llama3.sh, not the published model's 8."""

SIMUMAX_ASSUMPTIONS = (
    "context parallelism exchanges heads by all-to-all (--cp-comm-type a2a)",
    "no dropout, fused cross-entropy, gradients accumulated in fp32, no overlap of gradient reduction",
)


def convert_simumax(row: MeasurementRow) -> Conversion:
    """A SIMUB200 row: truncated Llama 3 on 8 B200, Megatron core 0.14 with Transformer Engine."""
    shape = row_shape(row)
    if shape is None:
        return unused(row, "model shape not stated")
    shape = replace(shape, vocab_size=SIMUMAX_VOCAB_SIZE)
    if shape.hidden_size == 16384:
        shape = replace(shape, num_key_value_heads=SIMUMAX_405B_KEY_VALUE_HEADS)
    dp, tp, pp, cp = (row.integer(name) or 1 for name in ("dp", "tp", "pp", "cp"))
    return measured(
        row,
        simumax_plan(
            shape=shape,
            layout=Layout(dp_shard=dp, zero_stage=1, tp=tp, pp=pp, cp=cp, sequence_parallel=tp > 1),
            seq_len=row.integer("seq_len") or 4096,
            num_microbatches=row.integer("grad_accum") or 1,
        ),
        Reading(figure=row.text("peak_mem"), unit=row.text("mem_unit"), scope="allocated"),
        assumptions=SIMUMAX_ASSUMPTIONS,
    )


def simumax_plan(*, shape: DecoderShape, layout: Layout, seq_len: int, num_microbatches: int) -> Plan:
    """The plan of one SimuMax benchmark case: 8 B200, micro-batches of one sequence, no recomputation."""
    return Plan(
        model=decoder(replace(shape, max_position_embeddings=max(shape.max_position_embeddings, seq_len))),
        cluster=cluster_for(gpu_label="B200-SXM", num_gpus=8),
        recipe=Recipe(
            seq_len=seq_len,
            micro_batch_size=1,
            global_batch_size=layout.data_parallel_size * num_microbatches,
            precision="bf16-mixed",
            recompute="none",
            attention="flash",
            compile=False,
            fused_loss=True,
        ),
        layout=layout,
        engine="megatron",
    )


def convert_simumax_run(row: MeasurementRow) -> Conversion:
    """A ``runs.csv`` row from the same SimuMax table."""
    is_70b = row.text("model").startswith("llama3_70b")
    shape = DecoderShape(
        model_type="llama",
        num_hidden_layers=12 if is_70b else 4,
        hidden_size=8192 if is_70b else 16384,
        intermediate_size=28672 if is_70b else 53248,
        num_attention_heads=64 if is_70b else 128,
        num_key_value_heads=8 if is_70b else SIMUMAX_405B_KEY_VALUE_HEADS,
        vocab_size=SIMUMAX_VOCAB_SIZE,
    )
    dp, tp, pp, cp = (row.integer(name) or 1 for name in ("shard_dp", "tp", "pp", "cp"))
    return measured(
        row,
        simumax_plan(
            shape=shape,
            layout=Layout(dp_shard=dp, zero_stage=1, tp=tp, pp=pp, cp=cp, sequence_parallel=tp > 1),
            seq_len=row.integer("seq") or 4096,
            num_microbatches=row.integer("grad_accum") or 1,
        ),
        Reading(figure=row.text("peak_mem"), unit=row.text("peak_unit"), scope="allocated"),
        assumptions=SIMUMAX_ASSUMPTIONS,
    )


ZERO_BUBBLE_SCHEDULES: dict[str, Schedule] = {
    "1F1B": "1f1b",
    "interleaved 1F1B (max chunks: 1 layer per chunk)": "interleaved",
    "ZB-1p": "zb-h1",
    "ZB-2p": "zb-h2",
}

ZERO_BUBBLE_VOCAB_SIZE = 32_000
"""The table does not print it; 14.6 and 28.3 billion parameters are met by a tied table of about 32 thousand tokens
and by no larger one."""

ZERO_BUBBLE_ASSUMPTIONS = (
    "vocabulary of 32,000, tied: the printed parameter counts 14.6B and 28.3B leave room for no more",
    "fp16 with loss scaling, unfused attention, dropout 0.1, no recomputation, no distributed optimizer",
    "2,048 learned positions",
    "interleaved runs put one layer in every virtual stage",
    "peak memory is the max allocated that the repository's report_memory prints",
)


def convert_zero_bubble(row: MeasurementRow) -> Conversion:
    """A ZBPP row: GPT models of the zero-bubble paper, pipeline parallelism only, fp16 on A100."""
    layers, hidden, heads, pp = (row.integer(name) for name in ("n_layers", "d_model", "n_heads", "pp"))
    micro_batch, global_batch = row.integer("micro_batch"), row.integer("global_batch")
    if not (layers and hidden and heads and pp and micro_batch and global_batch):
        return unused(row, "model shape or batch not stated")
    schedule = ZERO_BUBBLE_SCHEDULES[row.text("pp_schedule")]
    vpp = (layers + 2) // pp if schedule == "interleaved" else 1
    plan = Plan(
        model=decoder(
            DecoderShape(
                model_type="gpt2",
                num_hidden_layers=layers,
                hidden_size=hidden,
                intermediate_size=4 * hidden,
                num_attention_heads=heads,
                num_key_value_heads=heads,
                vocab_size=ZERO_BUBBLE_VOCAB_SIZE,
                max_position_embeddings=2048,
                tie_word_embeddings=True,
                dropout_fraction=0.1,
            )
        ),
        cluster=cluster_for(gpu_label=row.text("gpu"), num_gpus=pp),
        recipe=Recipe(
            seq_len=1024,
            micro_batch_size=micro_batch,
            global_batch_size=global_batch,
            precision="fp16-mixed",
            recompute="none",
            attention="eager",
            compile=False,
        ),
        layout=Layout(zero_stage=0, pp=pp, vpp=vpp, schedule=schedule),
        engine="megatron",
    )
    reading = Reading(figure=row.text("peak_mem"), unit=row.text("mem_unit"), scope="allocated")
    return measured(row, plan, reading, assumptions=ZERO_BUBBLE_ASSUMPTIONS)
