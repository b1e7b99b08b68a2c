"""Gradient accumulation: when ranks communicate, what it saves, and what has to be divided by what."""

from dataclasses import dataclass, replace

from shardwise.claims import Cell, Claim
from shardwise.course.lesson import Check, Lesson, LessonTable, Setting
from shardwise.course.lessons.data import mean_gradient
from shardwise.course.lessons.request import LessonRequest, checked, checked_seed
from shardwise.course.lessons.tiny_run import TinyRun, batch_of, exchange_picture, tiny_plan, tiny_run, walk
from shardwise.course.numerics.arrays import worst_error
from shardwise.course.numerics.reenact import one_device
from shardwise.course.numerics.tiny_model import initial_weights, tiny_model
from shardwise.engines.table import EngineName
from shardwise.layout import Layout
from shardwise.plan import Plan

OPTIONS = ("num_ranks", "num_microbatches", "num_hidden_layers", "seq_len", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of accumulating."""

    name: str
    engine: EngineName
    layout: Layout


def make_lesson(request: LessonRequest) -> Lesson:
    """Train one batch in one piece, in micro-batches that are reduced once, and in ones that are reduced every time."""
    num_ranks = checked("num_ranks", request.num_ranks, default=4, low=2, high=16)
    micro_batches = checked("num_microbatches", request.num_microbatches, default=4, low=2, high=32)
    layers = checked("num_hidden_layers", request.num_hidden_layers, default=2, low=1, high=8)
    seq_len = checked("seq_len", request.seq_len, default=16, low=2, high=512)
    seed = checked_seed(request)
    ways = _ways(num_ranks)
    model = tiny_model(num_hidden_layers=layers)
    runs = {}
    for way in ways:
        plan = tiny_plan(model, way.layout, engine=way.engine, seq_len=seq_len, num_microbatches=micro_batches)
        runs[way.name] = tiny_run(plan, seed=seed)
    first = runs[ways[0].name]
    table, error = _means_of_means(first.counted.plan, micro_batches, seed)
    return Lesson(
        name="accumulate",
        title=f"{micro_batches} micro-batches on each of {num_ranks} ranks",
        what="A simulation in numbers: gradients of several micro-batches are added before the optimizer steps. "
        "Whether ranks communicate once or every time is the engine's choice; the sum is the same.",
        settings=(
            Setting(name="num-ranks", value=num_ranks, unit="count"),
            Setting(name="num-microbatches", value=micro_batches, unit="count", meaning="of each rank and step"),
            Setting(name="num-hidden-layers", value=layers, unit="count"),
            Setting(name="seq-len", value=seq_len, unit="count"),
        ),
        tables=(_ways_table(ways, runs), table),
        steps=walk(first.counted),
        checks=tuple(_check(way, runs[way.name]) for way in ways),
        claims=_claims(ways, runs, micro_batches, error),
        pictures=(exchange_picture(first.counted, title="Accumulate, then reduce once"),),
        notes=(
            "Whole gradients have to be kept to reduce them once. Where gradients are divided over ranks (ZeRO-2, "
            "FSDP) there is nowhere to keep them, so each micro-batch is reduced, unless ranks keep them whole after "
            "all (`no_sync`), for as much memory as DDP's.",
        ),
    )


def _ways(num_ranks: int) -> tuple[Way, ...]:
    replicated, sharded = (Layout(dp_shard=num_ranks, zero_stage=0), Layout(dp_shard=num_ranks, zero_stage=3))
    return (
        Way(name="DDP, reduced once", engine="fsdp2", layout=replicated),
        Way(name="DDP, reduced every time", engine="fsdp2", layout=replace(replicated, defer_grad_reduce=False)),
        Way(name="ZeRO-1 (Megatron)", engine="megatron", layout=replace(sharded, zero_stage=1)),
        Way(name="ZeRO-2 (DeepSpeed)", engine="deepspeed", layout=replace(sharded, zero_stage=2)),
        Way(name="FSDP2", engine="fsdp2", layout=sharded),
        Way(name="FSDP2, kept gathered", engine="fsdp2", layout=replace(sharded, reshard_after_forward=False)),
        Way(name="FSDP2, reduced once", engine="fsdp2", layout=replace(sharded, defer_grad_reduce=True)),
    )


def sent_bytes(run: TinyRun) -> int:
    """Bytes that rank 0 sends in a step."""
    return sum(message.sent_bytes for message in run.counted.ranks[0].messages)


def _ways_table(ways: tuple[Way, ...], runs: dict[str, TinyRun]) -> LessonTable:
    least = sent_bytes(runs[ways[0].name])
    rows = []
    for way in ways:
        rank = runs[way.name].counted.ranks[0]
        gathers = sum(message.kind == "all_gather" for message in rank.messages)
        reductions = sum(
            message.kind in ("all_reduce", "reduce_scatter") and message.phase == "backward"
            for message in rank.messages
        )
        sent = sent_bytes(runs[way.name])
        rows.append((way.name, gathers, reductions, sent, sent / least, rank.held.peak["gradients"]))
    return LessonTable(
        title="What rank 0 communicates and keeps",
        head=("way | gathers: count | reductions: count | sent: bytes | over DDP once: ratio | gradients kept: bytes"),
        rows=tuple(rows),
    )


def _check(way: Way, run: TinyRun) -> Check:
    return replace(run.checks[0], what=f"{way.name}: gradients against one device, the batch at once")


def _means_of_means(plan: Plan, micro_batches: int, seed: int) -> tuple[LessonTable, float]:
    """One rank's micro-batches with different numbers of tokens, averaged both ways."""
    weights = initial_weights(plan.model, seed=seed)
    batch = batch_of(plan, seed=seed, num_sequences=micro_batches)
    parts = [batch.rows(number, number + 1) for number in range(micro_batches)]
    alone = [one_device(plan, weights, [part]) for part in parts]
    whole = one_device(plan, weights, [batch])
    tokens = [part.num_learned_tokens for part in parts]
    gradients = [run.gradients for run in alone]
    alike = worst_error(mean_gradient(gradients, [1] * micro_batches), whole.gradients)
    weighted = worst_error(mean_gradient(gradients, tokens), whole.gradients)
    mean = sum(run.losses[0] for run in alone) / micro_batches
    rows: list[tuple[Cell, ...]] = [
        (f"micro-batch {number}", count, run.losses[0], None)
        for number, (count, run) in enumerate(zip(tokens, alone, strict=True))
    ]
    rows += [
        ("all tokens at once", sum(tokens), whole.losses[0], 0.0),
        ("sum of losses / sum of tokens", sum(tokens), whole.losses[0], weighted),
        ("mean of the micro-batches' means", sum(tokens), mean, alike),
    ]
    return LessonTable(
        title="One rank's micro-batches, with different numbers of tokens that count",
        head="what | tokens: count | loss: number | error of the gradient: number",
        rows=tuple(rows),
    ), alike


def _claims(ways: tuple[Way, ...], runs: dict[str, TinyRun], micro_batches: int, error: float) -> tuple[Claim, ...]:
    source = "scaling lesson, exercise 3"
    once, each, _, zero2, fsdp, *_ = (runs[way.name] for way in ways)
    return (
        Claim(
            says=f"accumulating {micro_batches} micro-batches divides communication by their number",
            source=source,
            said=float(micro_batches),
            computed=sent_bytes(each) / sent_bytes(once),
            unit="ratio",
            verdict="loose",
            note=f"true of DDP; ZeRO-2 sends {sent_bytes(zero2) / sent_bytes(once):.1f} and FSDP "
            f"{sent_bytes(fsdp) / sent_bytes(once):.1f} times what DDP does, because they reduce every micro-batch",
        ),
        Claim(
            says="final gradients are identical: error of averaging the micro-batches' means",
            source=source,
            said=0.0,
            computed=error,
            unit="ratio",
            verdict="loose",
            note="only if every micro-batch has as many tokens; otherwise sum of losses over sum of tokens",
        ),
    )
