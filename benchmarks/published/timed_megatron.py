"""Rates measured on Megatron-LM: the papers, SimuMax's B200 table, the zero-bubble paper and MT-NLG."""

from dataclasses import dataclass, replace

from benchmarks.published.parts import DecoderShape, decoder, row_shape, unused
from benchmarks.published.rows import MeasurementRow
from benchmarks.published.timed_parts import (
    TimedConversion,
    machines,
    printed_gpt,
    selene,
    step_s_of_rate,
    timed,
)

from shardwise.catalog import read_cluster
from shardwise.course.formulas.flop_counts import megatron_2021_flop_per_step
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe, Recompute
from shardwise.schedules.table import Schedule

PAPER_ASSUMPTIONS = (
    "Selene: DGX A100 80GB with eight HDR InfiniBand adapters a node",
    "fp16 with loss scaling, Megatron's fused softmax but no flash attention, dropout 0.1, tied table",
    "the vocabulary-parallel loss in separate kernels, as before 2023",
)

KORTH_RECOMPUTE: dict[str, Recompute] = {"full": "full", "selective (attention core)": "selective"}


def convert_korthikanti(row: MeasurementRow) -> TimedConversion:
    """A KORTH row: arXiv:2205.05198 table 5, and the 530B run with eight-way data parallelism of its section 6.3."""
    shape = printed_gpt(row)
    num_gpus, global_batch, micro_batch = (row.integer(name) for name in ("n_gpus", "global_batch", "micro_batch"))
    if shape is None or not (num_gpus and global_batch and micro_batch):
        return unused(row, "shape or batch not stated")
    tp, pp, dp = (row.integer(name) or 1 for name in ("tp", "pp", "dp"))
    vpp = row.integer("vpp") or 1
    plan = _fp16_plan(
        shape=shape,
        num_gpus=num_gpus,
        micro_batch=micro_batch,
        global_batch=global_batch,
        recompute=KORTH_RECOMPUTE[row.text("recompute")],
        layout=Layout(
            dp_replicate=dp,
            zero_stage=0,
            tp=tp,
            pp=pp,
            vpp=vpp,
            schedule="interleaved" if vpp > 1 else "1f1b",
            sequence_parallel=row.text("seq_parallel") == "yes",
        ),
    )
    return timed(row, _without_overlap(plan), assumptions=PAPER_ASSUMPTIONS)


def _without_overlap(plan: Plan) -> Plan:
    """The plan with gradients reduced after backward, as Megatron did before 2022 and still does unless asked."""
    return replace(plan, recipe=replace(plan.recipe, overlap_grad_reduce=False))


def _fp16_plan(
    *, shape: DecoderShape, num_gpus: int, micro_batch: int, global_batch: int, recompute: Recompute, layout: Layout
) -> Plan:
    return Plan(
        model=decoder(shape),
        cluster=selene(num_gpus),
        recipe=Recipe(
            seq_len=shape.max_position_embeddings,
            micro_batch_size=micro_batch,
            global_batch_size=global_batch,
            precision="fp16-mixed",
            recompute=recompute,
            attention="eager",
            compile=False,
            fused_loss=False,
        ),
        layout=layout,
        engine="megatron",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _PaperRun:
    micro_batch_size: int
    vpp: int


SC21_TABLE_1 = {
    "GPT 1.7B": _PaperRun(micro_batch_size=16, vpp=1),
    "GPT 3.6B": _PaperRun(micro_batch_size=16, vpp=1),
    "GPT 7.5B": _PaperRun(micro_batch_size=16, vpp=1),
    "GPT 18B": _PaperRun(micro_batch_size=8, vpp=1),
    "GPT 39B": _PaperRun(micro_batch_size=4, vpp=1),
    "GPT 76B": _PaperRun(micro_batch_size=2, vpp=3),
    "GPT 145B": _PaperRun(micro_batch_size=2, vpp=2),
    "GPT 310B": _PaperRun(micro_batch_size=1, vpp=2),
    "GPT 530B": _PaperRun(micro_batch_size=1, vpp=3),
    "GPT 1T": _PaperRun(micro_batch_size=1, vpp=1),
}
"""NVIDIA/Megatron-LM@d98e8a6 examples/academic_paper_scripts/sc21/run_table_1.sh: micro-batch sizes, and layers per
virtual stage as stages per rank."""


def convert_sc21_table(row: MeasurementRow) -> TimedConversion:
    """An MLM21 row: arXiv:2104.04473 table 1, whose micro-batches and virtual stages its repository's script states."""
    shape, run = printed_gpt(row), SC21_TABLE_1.get(row.text("model"))
    num_gpus, global_batch = row.integer("n_gpus"), row.integer("global_batch")
    if shape is None or run is None or not (num_gpus and global_batch):
        return unused(row, "shape or batch not stated")
    tp, pp, dp = (row.integer(name) or 1 for name in ("tp", "pp", "dp"))
    plan = _fp16_plan(
        shape=shape,
        num_gpus=num_gpus,
        micro_batch=run.micro_batch_size,
        global_batch=global_batch,
        recompute="full",
        layout=Layout(
            dp_replicate=dp,
            zero_stage=0,
            tp=tp,
            pp=pp,
            vpp=run.vpp,
            schedule="interleaved" if run.vpp > 1 else "1f1b",
        ),
    )
    assumptions = (
        *PAPER_ASSUMPTIONS,
        "micro-batch size and virtual stages of sc21/run_table_1.sh",
        "torch's data parallelism up to 18B, Megatron's own without overlap from 39B on, as in the script",
    )
    plan = plan if pp == 1 else _without_overlap(plan)
    return _timed_by_equation_3(row, plan, shape, assumptions=assumptions)


def _timed_by_equation_3(
    row: MeasurementRow,
    plan: Plan,
    shape: DecoderShape,
    *,
    assumptions: tuple[str, ...],
    gaps: tuple[str, ...] = (),
) -> TimedConversion:
    """A row that prints only hardware TFLOP/s by the paper's equation 3, from which the step time follows."""
    rate = row.number("tflops_per_gpu")
    if not rate:
        return unused(row, "no rate printed")
    flop = megatron_2021_flop_per_step(
        global_batch_size=plan.global_batch_size,
        seq_len=plan.recipe.seq_len,
        num_hidden_layers=shape.num_hidden_layers,
        hidden_size=shape.hidden_size,
        vocab_size=shape.vocab_size,
    )
    step_s = step_s_of_rate(flop_per_step=flop, tflop_per_s_per_gpu=rate, num_gpus=plan.layout.world_size)
    note = "step time follows from the printed TFLOP/s by the paper's equation 3"
    return timed(row, plan, assumptions=(*assumptions, note), gaps=gaps, step_s=step_s)


ONE_BY_ONE = "DeepSpeed of 2021 gathered weights one by one, not in the buckets that a plan means"
"""deepspeedai/DeepSpeed#1453 of January 2022 gathers the weights of a module together and ahead; the paper is older."""


def convert_sc21_zero(row: MeasurementRow) -> TimedConversion:
    """An MLM21T2 row: arXiv:2104.04473 table 2, ZeRO stage 3 without model parallelism beside PTD-P."""
    shape = printed_gpt(row)
    num_gpus, global_batch, micro_batch = (row.integer(name) for name in ("n_gpus", "global_batch", "micro_batch"))
    if shape is None or not (num_gpus and global_batch and micro_batch):
        return unused(row, "shape or batch not stated")
    tp, pp, dp = (row.integer(name) or 1 for name in ("tp", "pp", "dp"))
    is_zero3 = row.text("shard") == "zero3"
    layout = Layout(dp_shard=dp, zero_stage=3) if is_zero3 else Layout(dp_replicate=dp, zero_stage=0, tp=tp, pp=pp)
    plan = _fp16_plan(
        shape=shape,
        num_gpus=num_gpus,
        micro_batch=micro_batch,
        global_batch=global_batch,
        recompute="full",
        layout=layout,
    )
    gaps = (ONE_BY_ONE,) if is_zero3 else ("virtual stages not stated; plain 1F1B is predicted",)
    if is_zero3:
        plan = replace(plan, engine="deepspeed")
    return _timed_by_equation_3(row, plan, shape, assumptions=PAPER_ASSUMPTIONS, gaps=gaps)


def convert_mt_nlg(row: MeasurementRow) -> TimedConversion:
    """An MTNLG row: the 530B model on 280 to 420 DGX A100 (arXiv:2201.11990, section 2.4)."""
    shape = printed_gpt(row)
    num_gpus, global_batch, dp = (row.integer(name) for name in ("n_gpus", "global_batch", "dp"))
    if shape is None or not (num_gpus and global_batch and dp):
        return unused(row, "shape or batch not stated")
    plan = Plan(
        model=decoder(shape),
        cluster=selene(num_gpus),
        recipe=Recipe(
            seq_len=2048,
            micro_batch_size=1,
            global_batch_size=global_batch,
            precision="bf16-mixed",
            recompute="full",
            attention="eager",
            compile=False,
        ),
        layout=Layout(dp_shard=dp, zero_stage=0, tp=8, pp=35),
        engine="deepspeed",
    )
    assumptions = (
        "one sequence a micro-batch, as in VIA-Research/vTrain@f8dda84 config/case_study_1, which repeats these runs",
        "DeepSpeed's 1F1B pipeline, gradients reduced over replicas",
    )
    return timed(row, plan, assumptions=assumptions)


def convert_timed_simumax(row: MeasurementRow, plan: Plan) -> TimedConversion:
    """A SIMUB200 row with the plan that its memory is predicted with."""
    return timed(row, _without_overlap(plan), assumptions=("context parallelism by all-to-all",))


def convert_timed_zero_bubble(row: MeasurementRow, plan: Plan) -> TimedConversion:
    """A ZBPP row with the plan that its memory is predicted with."""
    cluster = machines(gpu_label=row.text("gpu"), num_gpus=plan.layout.world_size, network="roce-200")
    note = "RoCE at 200 Gb/s per GPU: the paper names RoCE, not its rate"
    return timed(row, replace(plan, cluster=cluster), assumptions=(note, "vocabulary of 32,000, tied; fp16, unfused"))


VTRAIN_VOCAB_SIZE = 50_257
"""VIA-Research/vTrain@f8dda84 src/config.py: the default, which no configuration of the validation set overrides. Its
src/model/gpt_modeling.py divides the table without padding it, as ``vocab_size // world_size``."""

VTRAIN_ASSUMPTIONS = (
    "vocabulary of 50,257, divided without padding, and full recomputation, as in the repository's model and "
    "config/validation/single",
    "Megatron-DeepSpeed's GPT blocks in fp16 with unfused attention; gradients reduced by plain data parallelism",
    "DGX A100 80GB",
)


SMALL_BLOCKS_HIDDEN_SIZE = 2048
"""Rows of this width are a family of their own, VTRAINS2048: the band of small blocks is fitted on them and judged on
those of 1,024."""


def convert_vtrain(row: MeasurementRow) -> TimedConversion:
    """A VTRAINS row: small GPTs on 2 to 8 A100 of one node, Megatron-DeepSpeed."""
    shape = printed_gpt(row, vocab_size=VTRAIN_VOCAB_SIZE - VTRAIN_VOCAB_SIZE % (row.integer("tp") or 1))
    num_gpus, global_batch, micro_batch = (row.integer(name) for name in ("n_gpus", "global_batch", "micro_batch"))
    if shape is None or not (num_gpus and global_batch and micro_batch):
        return unused(row, "shape or batch not stated")
    dp, tp, pp = (row.integer(name) or 1 for name in ("dp", "tp", "pp"))
    plan = _fp16_plan(
        shape=shape,
        num_gpus=num_gpus,
        micro_batch=micro_batch,
        global_batch=global_batch,
        recompute="full",
        layout=Layout(dp_replicate=dp, zero_stage=0, tp=tp, pp=pp),
    )
    if shape.hidden_size == SMALL_BLOCKS_HIDDEN_SIZE:
        row = replace(row, family=f"{row.family}{SMALL_BLOCKS_HIDDEN_SIZE}")
    return timed(row, replace(plan, engine="deepspeed"), assumptions=VTRAIN_ASSUMPTIONS)


VTRAIN_NODES_ASSUMPTIONS = (
    "full recomputation, as in the repository's config/validation/multi; vocabulary of 51,200, padded to whole tiles",
    "Megatron's GPT blocks in fp16 with unfused attention; gradients reduced by plain data parallelism",
    "DGX A100 80GB with four HDR InfiniBand adapters a node",
)


def convert_vtrain_nodes(row: MeasurementRow) -> TimedConversion:
    """A VTRAINM row: GPTs of 3.6 to 175 billion parameters on 64 to 512 A100, Megatron-DeepSpeed."""
    shape = printed_gpt(row)
    num_gpus, global_batch, micro_batch = (row.integer(name) for name in ("n_gpus", "global_batch", "micro_batch"))
    if shape is None or not (num_gpus and global_batch and micro_batch):
        return unused(row, "shape or batch not stated")
    dp, tp, pp = (row.integer(name) or 1 for name in ("dp", "tp", "pp"))
    plan = _fp16_plan(
        shape=shape,
        num_gpus=num_gpus,
        micro_batch=micro_batch,
        global_batch=global_batch,
        recompute="full",
        layout=Layout(dp_replicate=dp, zero_stage=0, tp=tp, pp=pp),
    )
    cluster = machines(gpu_label=row.text("gpu"), num_gpus=num_gpus, network="ib-hdr", node_gbit_per_s=800)
    return timed(row, replace(plan, cluster=cluster), assumptions=VTRAIN_NODES_ASSUMPTIONS)


INTERN_VOCAB_SIZE = 103_168
"""InternLM/InternEvo@c628a8c configs/7B_sft.py, not the 32,000 of the Llama shape."""

INTERN_ASSUMPTIONS = (
    "InternLM-7B as InternEvo's configs/7B_sft.py sets it: 103,168 tokens, RMSNorm, SwiGLU, flash attention",
    "ZeRO stage 1 over all data ranks, or within a node and replicated between nodes; gradients are reduced in bf16 "
    "under backward",
    "4 x 100 Gb/s RoCE a node",
)


def convert_intern(row: MeasurementRow) -> TimedConversion:
    """An EVO row: InternLM-7B on 8 to 1,024 A100, InternEvo's ZeRO stage 1.

    Of the engines a plan can name, DeepSpeed's habits are InternEvo's: large buckets under backward, weights exchanged
    after the update, fp32 norms, gate and up projections as two products. Updated tensors are broadcast by their owners
    (``internlm/solver/optimizer/hybrid_zero_optim.py``, ``broadcast_params``).
    """
    shape = row_shape(row)
    num_gpus, dp, micro_batch, global_batch = (
        row.integer(name) for name in ("n_gpus", "dp", "micro_batch", "global_batch")
    )
    if shape is None or not (num_gpus and dp and micro_batch and global_batch):
        return unused(row, "shape or batch not stated")
    tp, zero_ranks = row.integer("tp") or 1, _zero_ranks(row.text("shard"), dp)
    plan = Plan(
        model=decoder(replace(shape, vocab_size=INTERN_VOCAB_SIZE)),
        cluster=machines(gpu_label=row.text("gpu"), num_gpus=num_gpus, network="roce-100", node_gbit_per_s=400),
        recipe=Recipe(
            seq_len=row.integer("seq_len") or 2048,
            micro_batch_size=micro_batch,
            global_batch_size=global_batch,
            precision="bf16-mixed",
            recompute="full" if row.text("recompute") == "full" else "none",
            attention="flash",
            compile=False,
            reduce_dtype="bf16",
            overlap_grad_reduce=True,
            broadcast_weights=True,
        ),
        layout=Layout(dp_replicate=dp // zero_ranks, dp_shard=zero_ranks, zero_stage=1, tp=tp),
        engine="deepspeed",
    )
    return timed(row, plan, assumptions=INTERN_ASSUMPTIONS)


def _zero_ranks(shard: str, dp: int) -> int:
    """Ranks that the optimizer states are divided over."""
    for ranks in (8, 4):
        if f"within {ranks}" in shard:
            return min(ranks, dp)
    return dp


def convert_nemotron_4(row: MeasurementRow) -> TimedConversion:
    """A NEM15 row: Nemotron-4 15B on 768 to 2,304 H100; batch per rank stated, its micro-batches not."""
    num_gpus, dp, global_batch = (row.integer(name) for name in ("n_gpus", "dp", "global_batch"))
    if not (num_gpus and dp and global_batch):
        return unused(row, "batch not stated")
    plan = Plan(
        model=read_model("nemotron-4-15b"),
        cluster=read_cluster({"node": "dgx-h100", "num_nodes": num_gpus // 8}),
        recipe=Recipe(
            seq_len=4096,
            global_batch_size=global_batch,
            precision="bf16-mixed",
            attention="flash",
            compile=False,
        ),
        layout=Layout(dp_shard=dp, zero_stage=1, tp=8, sequence_parallel=True),
        engine="megatron",
    )
    gaps = ("micro-batch of the 4 sequences a rank and recomputation not stated: one, none",)
    return timed(row, plan, gaps=gaps)


def convert_megascale(row: MeasurementRow) -> TimedConversion:
    """A MEGASC row of the Megatron-LM baseline; MegaScale's own rows change the block."""
    if row.text("framework") != "Megatron-LM":
        return unused(row, "MegaScale's parallel block with sliding windows and its own overlap are not a plan")
    shape = printed_gpt(row)
    num_gpus, global_batch, dp = (row.integer(name) for name in ("n_gpus", "global_batch", "dp"))
    if shape is None or not (num_gpus and global_batch and dp):
        return unused(row, "shape or batch not stated")
    schedule: Schedule = "interleaved"
    plan = _fp16_plan(
        shape=shape,
        num_gpus=num_gpus,
        micro_batch=1,
        global_batch=global_batch,
        recompute="selective",
        layout=Layout(dp_shard=dp, zero_stage=1, tp=8, pp=8, vpp=6, schedule=schedule, sequence_parallel=True),
    )
    plan = replace(plan, recipe=replace(plan.recipe, precision="bf16-mixed", attention="flash"))
    gaps = ("micro-batch, recomputation, attention and sequence parallelism not stated: 1, selective, flash, yes",)
    return timed(row, plan, gaps=gaps)
