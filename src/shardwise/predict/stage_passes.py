"""What a stage waits for because of data parallelism: its passes in the event engine.

FSDP and ZeRO-3 gather and reduce block by block. DDP, Megatron and ZeRO-2 do so bucket by bucket: a pass is cut into as
many equal pieces as there are buckets. Pipelines and gradient accumulation without deferral differ only in how often
such a pass happens, which the inventory's ``rounds`` say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.ledger import TimeComponent
from shardwise.predict.concurrency import overlapped_s
from shardwise.predict.pass_time import ExposedCall, pass_time
from shardwise.predict.passes import PassCall, PassWork, Piece
from shardwise.step.data_parallel_collectives import shards_unit_by_unit
from shardwise.step.inventory import Axis, Collective, OperationPhase
from shardwise.step.stage_context import StageContext
from shardwise.units import Seconds

TABLES = "embedding and head"
MOST_SIMULATED_BUCKETS = 32
"""Passes of more buckets are timed by the closed form of their queue, which is exact for one kind of reduction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedCall:
    """One record of the inventory with the time of one call."""

    collective: Collective
    call_s: Seconds
    slowdown_ratio: float

    @property
    def total_s(self) -> Seconds:
        """Over the whole step."""
        return self.collective.count * self.call_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWork:
    """One block of a run for one micro-batch, with its part of what the stage does in all its blocks."""

    name: str
    count: int
    forward_s: Seconds
    backward_s: Seconds
    recompute_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """Computation of one stage for one micro-batch, in model order."""

    blocks: tuple[BlockWork, ...]
    embedding_forward_s: Seconds
    embedding_backward_s: Seconds
    head_forward_s: Seconds
    head_backward_s: Seconds
    forward_waits: tuple[PassCall, ...]
    """What the blocks of a pass wait for, all of them together."""
    backward_waits: tuple[PassCall, ...]

    @property
    def num_blocks(self) -> int:
        """Of all runs."""
        return sum(block.count for block in self.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePass:
    """One pass of a micro-batch with the data parallelism of it."""

    phase: OperationPhase
    runs: tuple[Piece, ...]
    rounds: int
    """How many micro-batches of a step have it."""
    is_throttled: bool


def stage_passes(context: StageContext, calls: Sequence[TimedCall], work: StageWork) -> Iterator[StagePass]:
    """The passes of a stage that data parallelism accompanies."""
    hidden = {timed.collective.name for timed in calls if timed.collective.is_overlappable}
    unit_by_unit = shards_unit_by_unit(context)
    phases: tuple[OperationPhase, ...] = ("forward", "backward")
    for phase in phases:
        own = [timed for timed in calls if timed.collective.phase == phase]
        if not unit_by_unit:
            own = [timed for timed in own if timed.collective.name in hidden]
        if not own:
            continue
        runs = _units(context, own, work, phase) if unit_by_unit else _buckets(own, work, phase)
        yield StagePass(
            phase=phase,
            runs=runs,
            rounds=max(timed.collective.rounds for timed in own),
            is_throttled=unit_by_unit,
        )


def plain_runs(context: StageContext, work: StageWork, phase: OperationPhase) -> tuple[Piece, ...]:
    """A pass without data parallelism."""
    return _units(context, [], work, phase)


def exposed_calls(one: StagePass) -> tuple[ExposedCall, ...]:
    """What the collectives of a pass add to it."""
    most = max(piece.count for piece in one.runs)
    if not one.is_throttled and one.phase == "backward" and most > MOST_SIMULATED_BUCKETS:
        return _queued(one.runs[0])
    return pass_time(one.runs, is_throttled=one.is_throttled).exposed


def _queued(piece: Piece) -> tuple[ExposedCall, ...]:
    """Many buckets whose reductions computation never waits for.

    The first piece computes alone and the last bucket is reduced alone. Between them the reductions of one piece run
    under the next one, or lag behind all of them: in both cases what is common to both sides is slowed.
    """
    num_left = piece.count - 1
    work_s = sum(work.duration_s for work in piece.works)
    waits_s = sum(call.duration_s for call in piece.waits)
    line_s = work_s + waits_s
    by_axis: dict[str, Seconds] = {}
    for call in piece.reductions:
        by_axis[call.axis] = by_axis.get(call.axis, 0.0) + call.duration_s
    ratio = max(call.slowdown_ratio for call in piece.reductions)
    ratio = 1 + (ratio - 1) * (work_s / line_s if line_s else 0.0)
    middle_s = overlapped_s(work_s=num_left * line_s, hidden_s=num_left * max(by_axis.values()), ratio=ratio)
    total_s = sum(by_axis.values())
    exposed_s = middle_s - num_left * line_s + total_s
    return tuple(
        ExposedCall(name=call.name, axis=call.axis, exposed_s=exposed_s * call.duration_s / total_s if total_s else 0.0)
        for call in piece.reductions
    )


def _units(
    context: StageContext, calls: Sequence[TimedCall], work: StageWork, phase: OperationPhase
) -> tuple[Piece, ...]:
    """Blocks in the order of the pass, between the embedding and the head."""
    names: dict[tuple[object, ...], str] = {}
    name_of_run = {
        unit.run: names.setdefault((unit.is_block, unit.base, unit.adapter), unit.name)
        for unit in context.units
        if unit.is_block
    }
    blocks = [
        _unit(_of_unit(calls, name_of_run[run]), _works(block, phase), _waits(work, phase), count=block.count)
        for run, block in enumerate(work.blocks)
    ]
    tables = _of_unit(calls, TABLES)
    if phase == "forward":
        first = _unit(tables, _table_work("embedding", phase, work.embedding_forward_s), ())
        last = _unit([], _table_work("head", phase, work.head_forward_s), ())
        return (first, *blocks, last)
    first = _unit([], _table_work("head", phase, work.head_backward_s), ())
    last = _unit(tables, _table_work("embedding", phase, work.embedding_backward_s), ())
    return (first, *reversed(blocks), last)


def _of_unit(calls: Sequence[TimedCall], unit: str) -> list[TimedCall]:
    """Calls that gather or reduce a unit, its dense and its routed weights."""
    wanted = {
        name
        for part in (unit, f"{unit} experts")
        for name in (f"all-gather {part}", f"reduce-scatter {part}", f"all-reduce {part} over replicas")
    }
    return [timed for timed in calls if timed.collective.name in wanted]


def _unit(
    calls: Sequence[TimedCall], works: tuple[PassWork, ...], waits: tuple[PassCall, ...], *, count: int = 1
) -> Piece:
    found = {timed.collective.name: _pass_call(timed) for timed in calls}
    gathers = tuple(call for call in found.values() if call.kind == "all_gather")
    scatters = tuple(call for call in found.values() if call.kind == "reduce_scatter")
    others = tuple(call for call in found.values() if call.kind == "all_reduce")
    return Piece(works=works, waits=waits, gathers=gathers, reductions=(*scatters, *others), count=count)


def _pass_call(timed: TimedCall, *, share: float = 1.0) -> PassCall:
    call = timed.collective
    return PassCall(
        name=call.name,
        kind=call.kind,
        axis=call.axis,
        duration_s=share * timed.call_s,
        slowdown_ratio=timed.slowdown_ratio,
    )


def _works(block: BlockWork, phase: OperationPhase) -> tuple[PassWork, ...]:
    if phase == "forward":
        return (PassWork(name=f"forward {block.name}", category="forward", duration_s=block.forward_s),)
    backward = PassWork(name=f"backward {block.name}", category="backward", duration_s=block.backward_s)
    if not block.recompute_s:
        return (backward,)
    return (PassWork(name=f"recompute {block.name}", category="recompute", duration_s=block.recompute_s), backward)


def _table_work(name: str, phase: OperationPhase, duration_s: Seconds) -> tuple[PassWork, ...]:
    category: TimeComponent = "forward" if phase == "forward" else "backward"
    return (PassWork(name=f"{phase} {name}", category=category, duration_s=duration_s),)


def _waits(work: StageWork, phase: OperationPhase) -> tuple[PassCall, ...]:
    """The part of one block in what all of them wait for."""
    waits = work.forward_waits if phase == "forward" else work.backward_waits
    return _shares(waits, work.num_blocks)


def _shares(waits: tuple[PassCall, ...], num_pieces: int) -> tuple[PassCall, ...]:
    return tuple(
        PassCall(
            name=call.name,
            kind=call.kind,
            axis=call.axis,
            duration_s=call.duration_s / max(1, num_pieces),
            slowdown_ratio=call.slowdown_ratio,
        )
        for call in waits
    )


def _buckets(calls: Sequence[TimedCall], work: StageWork, phase: OperationPhase) -> tuple[Piece, ...]:
    """Equal pieces of a pass, as many as the most frequent collective has buckets."""
    counts: dict[tuple[str, Axis], int] = {}
    timed_of: dict[tuple[str, Axis], TimedCall] = {}
    for timed in calls:
        key = (timed.collective.name, timed.collective.axis)
        counts[key] = counts.get(key, 0) + timed.collective.count // timed.collective.rounds
        timed_of[key] = timed
    num_pieces = max(counts.values())
    found = [_pass_call(timed, share=counts[key] / num_pieces) for key, timed in timed_of.items()]
    gathers = tuple(call for call in found if call.kind == "all_gather")
    reductions = tuple(call for call in found if call.kind != "all_gather")
    total_s = _pass_s(work, phase)
    category: TimeComponent = "forward" if phase == "forward" else "backward"
    piece = Piece(
        works=(PassWork(name=f"{phase} of one bucket", category=category, duration_s=total_s / num_pieces),),
        waits=_shares(work.forward_waits if phase == "forward" else work.backward_waits, num_pieces),
        gathers=gathers,
        reductions=tuple(sorted(reductions, key=lambda call: call.kind, reverse=True)),
        count=num_pieces,
    )
    return (piece,)


def _pass_s(work: StageWork, phase: OperationPhase) -> Seconds:
    """Computation of the whole pass."""
    if phase == "forward":
        blocks_s = sum(block.count * block.forward_s for block in work.blocks)
        return blocks_s + work.embedding_forward_s + work.head_forward_s
    blocks_s = sum(block.count * (block.backward_s + block.recompute_s) for block in work.blocks)
    return blocks_s + work.embedding_backward_s + work.head_backward_s
