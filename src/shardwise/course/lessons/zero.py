"""ZeRO stage by stage: what each of them divides, what it communicates, and why clipping needs the global norm."""

import numpy as np

from shardwise.claims import Cell, Claim
from shardwise.course.formulas.model_states import zero_reduction_ratio
from shardwise.course.lesson import Lesson, LessonTable, Setting
from shardwise.course.lessons.accumulate import sent_bytes
from shardwise.course.lessons.request import LessonRequest, checked, checked_seed
from shardwise.course.lessons.tiny_run import TinyRun, exchange_picture, tiny_plan, tiny_run, traffic_table, walk
from shardwise.course.numerics.adamw import AdamW, clip_factor
from shardwise.course.numerics.tiny_model import tiny_model
from shardwise.engines.table import EngineName
from shardwise.layout import Layout, ZeroStage

OPTIONS = ("num_ranks", "zero_stage", "num_hidden_layers", "num_microbatches", "seed")
STAGES: tuple[tuple[ZeroStage, EngineName], ...] = (
    (0, "megatron"),
    (1, "megatron"),
    (2, "deepspeed"),
    (3, "deepspeed"),
)
"""Each stage as an engine offers it: Megatron's distributed optimizer, DeepSpeed's ZeRO-2 and 3."""
DIVIDED = ("nothing", "optimizer states", "and gradients", "and parameters")


def make_lesson(request: LessonRequest) -> Lesson:
    """Train with every stage; walk through one."""
    num_ranks = checked("num_ranks", request.num_ranks, default=4, low=2, high=16)
    walked = checked("zero_stage", request.zero_stage, default=2, low=0, high=3)
    layers = checked("num_hidden_layers", request.num_hidden_layers, default=2, low=1, high=8)
    micro_batches = checked("num_microbatches", request.num_microbatches, default=1, low=1, high=8)
    seed = checked_seed(request)
    runs = [
        tiny_run(
            tiny_plan(
                tiny_model(num_hidden_layers=layers),
                Layout(dp_shard=num_ranks, zero_stage=stage),
                engine=engine,
                num_microbatches=micro_batches,
            ),
            seed=seed,
            num_steps=2,
        )
        for stage, engine in STAGES
    ]
    shown = runs[walked].counted
    return Lesson(
        name="zero",
        title=f"ZeRO over {num_ranks} ranks",
        what="A simulation in numbers: the same two training steps with nothing divided, optimizer states divided, "
        "gradients too, and parameters too. Everything is fp32, so that a parameter takes 4 + 4 + 8 bytes; in mixed "
        "precision the parts weigh differently, and the claims say so.",
        settings=(
            Setting(name="num-ranks", value=num_ranks, unit="count"),
            Setting(name="zero-stage", value=walked, unit="count", meaning="to walk through"),
            Setting(name="num-hidden-layers", value=layers, unit="count"),
            Setting(name="num-microbatches", value=micro_batches, unit="count"),
        ),
        tables=(
            _stages_table(runs),
            _clipping_table(runs[1]),
            traffic_table(shown, title=f"What rank 0 exchanges in one step of stage {walked}"),
        ),
        steps=walk(shown),
        checks=tuple(check for run in runs for check in run.checks),
        claims=_claims(runs, num_ranks),
        pictures=(exchange_picture(shown, title=f"One step of ZeRO-{walked}"),),
        notes=(
            "AdamW treats every element alike, so a rank that updates its shard gets the same numbers as a rank that "
            "updates everything. Optimizers that look at whole matrices (Muon, Adafactor, LAMB) do not have this.",
        ),
    )


def _stages_table(runs: list[TinyRun]) -> LessonTable:
    least = sent_bytes(runs[0])
    rows: list[tuple[Cell, ...]] = []
    for (stage, engine), run in zip(STAGES, runs, strict=True):
        peak = run.counted.ranks[0].held.peak
        states = [peak[name] for name in ("parameters", "gradients", "optimizer")]
        gathered = peak["gathered_parameters"]
        sent = sent_bytes(run) / least
        rows.append((f"{stage} ({engine})", DIVIDED[stage], *states, sum(states), gathered, sent))
    return LessonTable(
        title="What rank 0 holds, and what it sends against stage 0",
        head=(
            "stage | divides | parameters: bytes | gradients: bytes | optimizer: bytes | states: bytes | "
            "gathered: bytes | sent: ratio"
        ),
        rows=tuple(rows),
    )


def _clipping_table(run: TinyRun) -> LessonTable:
    """The norm of the model, and the norms that ranks would clip by if they asked nobody."""
    settings = AdamW()
    gradients = run.found.gradients.values()
    whole = float(np.sqrt(sum((gradient**2).sum() for gradient in gradients)))
    line = np.concatenate([gradient.reshape(-1) for gradient in gradients])
    shards = np.array_split(line, run.found.plan.layout.dp_shard)
    rows: list[tuple[Cell, ...]] = [("the model", whole, clip_factor(whole, settings))]
    for rank, shard in enumerate(shards):
        norm = float(np.linalg.norm(shard))
        rows.append((f"shard of rank {rank}", norm, clip_factor(norm, settings)))
    return LessonTable(
        title=f"Clipping to a norm of {settings.max_norm:g}",
        head="norm of | norm: number | factor: number",
        rows=tuple(rows),
        note="ranks that clipped by their own shard would scale parts of one gradient differently; one all-reduce of "
        "the squares gives all the first factor",
    )


def _claims(runs: list[TinyRun], num_ranks: int) -> tuple[Claim, ...]:
    source = "scaling lesson, DeepSpeed ZeRO"

    def reduction(stage: ZeroStage) -> float:
        return zero_reduction_ratio(dp_shard=num_ranks, zero_stage=stage)

    limits = "in 16-bit mixed precision (16 bytes a parameter), and only with very many ranks"
    return (
        Claim(
            says="ZeRO-1 saves about 4x",
            source=source,
            said=4.0,
            computed=reduction(1),
            unit="ratio",
            verdict="loose",
            note=limits,
        ),
        Claim(
            says="ZeRO-2 saves about 8x",
            source=source,
            said=8.0,
            computed=reduction(2),
            unit="ratio",
            verdict="loose",
            note=limits,
        ),
        Claim(
            says="ZeRO-3 saves as many times as there are ranks",
            source=source,
            said=float(num_ranks),
            computed=reduction(3),
            unit="ratio",
            verdict="right",
        ),
        Claim(
            says="ZeRO-2 communicates slightly more than data parallelism",
            source=source,
            said="slightly more",
            computed=sent_bytes(runs[2]) / sent_bytes(runs[0]),
            unit="ratio",
            verdict="loose",
            note="the same with one micro-batch; with m of them it reduces m times",
        ),
        Claim(
            says="ZeRO-3 communicates 1.5 times as much",
            source="ZeRO paper, section 7",
            said=1.5,
            computed=sent_bytes(runs[3]) / sent_bytes(runs[0]),
            unit="ratio",
            verdict="loose",
            note="gather, gather again, reduce-scatter: 3 for 2 in one type, less the tables and head, which are "
            "gathered once",
        ),
    )
