"""Context parallelism: sequences divided over ranks, attention by ring, gather or exchange, and balanced work."""

from dataclasses import replace

import numpy as np

from shardwise.claims import Claim
from shardwise.course.lesson import Check, Lesson, LessonTable, Setting
from shardwise.course.lessons.request import LessonRequest, checked, checked_seed
from shardwise.course.lessons.tiny_run import (
    EXACT,
    TinyRun,
    batch_of,
    exchange_picture,
    held_table,
    require_multiple,
    tiny_plan,
    tiny_run,
    traffic_table,
    walk,
)
from shardwise.course.numerics.context_parallel import Balance, positions_of
from shardwise.course.numerics.reenact import Options, gradient_error, reenact
from shardwise.course.numerics.tiny_model import initial_weights, tiny_model
from shardwise.engines.table import EngineName
from shardwise.layout import Layout

OPTIONS = ("num_ranks", "seq_len", "num_hidden_layers", "num_key_value_heads", "seed")
BALANCES: tuple[Balance, ...] = ("contiguous", "zigzag")
WAYS: tuple[tuple[str, EngineName], ...] = (
    ("ring (Megatron)", "megatron"),
    ("gather (torch)", "fsdp2"),
    ("exchange (DeepSpeed)", "deepspeed"),
)


def make_lesson(request: LessonRequest) -> Lesson:
    """Three ways of attending to keys of other ranks, and two of dividing the sequence."""
    num_ranks = checked("num_ranks", request.num_ranks, default=4, low=2, high=16)
    seq_len = checked("seq_len", request.seq_len, default=8 * num_ranks, low=2 * num_ranks, high=1024)
    require_multiple(
        "seq_len", seq_len, of=2 * num_ranks, why="each rank has an early and a late piece of equal length"
    )
    layers = checked("num_hidden_layers", request.num_hidden_layers, default=1, low=1, high=4)
    kv_heads = checked("num_key_value_heads", request.num_key_value_heads, default=num_ranks, low=1, high=64)
    seed = checked_seed(request)
    model = tiny_model(
        num_hidden_layers=layers,
        num_attention_heads=2 * kv_heads,
        num_key_value_heads=kv_heads,
        hidden_size=8 * kv_heads,
    )
    layout = Layout(cp=num_ranks, zero_stage=0)
    ways = [way for way in WAYS if kv_heads % num_ranks == 0 or way[1] != "deepspeed"]
    runs = {
        name: tiny_run(tiny_plan(model, layout, engine=engine, seq_len=seq_len), seed=seed) for name, engine in ways
    }
    ring = runs["ring (Megatron)"]
    contiguous = _contiguous(ring, seed)
    return Lesson(
        name="context",
        title=f"Context parallelism over {num_ranks} ranks",
        what="A simulation in numbers: every rank has part of each sequence. In the ring, keys and values travel from "
        "rank to rank; each rank adds what it sees to a softmax that is rescaled as it goes. The backward sends them "
        "round again and their gradients after them.",
        settings=(
            Setting(name="num-ranks", value=num_ranks, unit="count"),
            Setting(name="seq-len", value=seq_len, unit="count"),
            Setting(name="num-key-value-heads", value=kv_heads, unit="count", meaning="with two query heads each"),
            Setting(name="num-hidden-layers", value=layers, unit="count"),
        ),
        tables=(
            _ways_table(runs),
            _balance_table(num_ranks, seq_len),
            traffic_table(ring.counted, title="What rank 0 exchanges in one step of the ring"),
            held_table(ring.counted),
        ),
        steps=walk(ring.counted),
        checks=(*(check for run in runs.values() for check in _comparable(run)), contiguous),
        claims=_claims(num_ranks, seq_len),
        pictures=(exchange_picture(ring.counted, title=f"Ring attention over {num_ranks} ranks"),),
        notes=(
            "A hop of the ring hides under the attention of the block before it; a gather does not, and needs room for "
            "all keys and values. With few key-value heads that room is small, and one gather is simpler.",
            "Exchanging heads for tokens needs as many key-value heads as ranks; the ring needs none.",
        ),
    )


def _comparable(run: TinyRun) -> tuple[Check, ...]:
    """Exchanged attention keeps its output twice, with some heads and with some tokens; the inventory counts one."""
    checks = tuple(replace(check, what=f"{run.counted.plan.engine}, {check.what}") for check in run.checks)
    return checks[:-1] if run.counted.plan.engine == "deepspeed" else checks


def _contiguous(ring: TinyRun, seed: int) -> Check:
    plan = ring.found.plan
    weights, batch = initial_weights(plan.model, seed=seed), batch_of(plan, seed=seed)
    found = reenact(plan, weights, [batch], Options(balance="contiguous"))
    return Check(
        what="contiguous parts: gradients against one device, fp64",
        difference=gradient_error(found, ring.expected),
        limit=EXACT,
    )


def _ways_table(runs: dict[str, TinyRun]) -> LessonTable:
    rows = []
    for name, run in runs.items():
        rank = run.counted.ranks[0]
        inside = [message for message in rank.messages if message.axis == "cp"]
        sent = {phase: sum(one.sent_bytes for one in inside if one.phase == phase) for phase in ("forward", "backward")}
        kinds = ", ".join(dict.fromkeys(message.kind for message in inside))
        rows.append((name, kinds, len(inside), sent["forward"], sent["backward"], run.checks[0].difference))
    return LessonTable(
        title="Three ways of attending to the keys of other ranks",
        head=(
            "way | collectives | calls: count | sent forward: bytes | sent backward: bytes | "
            "error of the gradient: number"
        ),
        rows=tuple(rows),
    )


def num_scores(member: int, *, cp: int, seq_len: int, balance: Balance) -> int:
    """Query-key pairs one rank computes under a causal mask: a token sees itself and all before it."""
    return int((positions_of(member=member, cp=cp, seq_len=seq_len, balance=balance) + 1).sum())


def _balance_table(num_ranks: int, seq_len: int) -> LessonTable:
    mean = seq_len * (seq_len + 1) / 2 / num_ranks
    rows = []
    for member in range(num_ranks):
        pieces = [positions_of(member=member, cp=num_ranks, seq_len=seq_len, balance=balance) for balance in BALANCES]
        counts = [num_scores(member, cp=num_ranks, seq_len=seq_len, balance=balance) for balance in BALANCES]
        cells = [(_ranges(places), count / mean) for places, count in zip(pieces, counts, strict=True)]
        rows.append((str(member), *cells[0], *cells[1]))
    return LessonTable(
        title="Which tokens each rank has, and its share of the scores over the mean",
        head="rank | contiguous | work: ratio | zig-zag | work: ratio",
        rows=tuple(rows),
    )


def _ranges(places: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]") -> str:
    runs = np.split(places, np.flatnonzero(np.diff(places) != 1) + 1)
    return ", ".join(f"{run[0]}-{run[-1]}" for run in runs)


def _claims(num_ranks: int, seq_len: int) -> tuple[Claim, ...]:
    def slowest(balance: Balance) -> float:
        counts = [num_scores(one, cp=num_ranks, seq_len=seq_len, balance=balance) for one in range(num_ranks)]
        return max(counts) / (sum(counts) / num_ranks)

    return (
        Claim(
            says="contiguous parts of a causal sequence: the slowest rank over the mean, at most 2 - 1/n",
            source="ring attention with a causal mask; Megatron-LM and torch balance by head and tail",
            said=2 - 1 / num_ranks,
            computed=slowest("contiguous"),
            unit="ratio",
            verdict="right",
        ),
        Claim(
            says="zig-zag: every rank computes the same",
            source="the same",
            said=1.0,
            computed=slowest("zigzag"),
            unit="ratio",
            verdict="right",
        ),
    )
