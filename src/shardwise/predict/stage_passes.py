"""Time that data parallelism adds to a stage: its passes with their gathers and reductions, in the event engine.

FSDP and ZeRO-3 gather and reduce block by block; DDP, Megatron and ZeRO-2 bucket by bucket, see
:mod:`shardwise.predict.bucket_passes`. Pipelines and gradient accumulation without deferral differ only in how often
such a pass happens, which the inventory's ``rounds`` say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.predict.block_tasks import TimedCall
from shardwise.predict.bucket_passes import bucket_pieces, queued_reductions
from shardwise.predict.pass_time import pass_time
from shardwise.predict.passes import Piece
from shardwise.predict.stage_work import BlockWork, StageWork
from shardwise.predict.tasks import ExposedCall
from shardwise.step.inventory import OperationPhase
from shardwise.step.reduction_policy import communicates_unit_by_unit, overlaps_reductions
from shardwise.step.stage_context import StageContext

TABLES = "embedding and head"
MOST_SIMULATED_BUCKETS = 32
"""Passes of more buckets are timed as a queue in one sweep, which is exact for reductions of one group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePass:
    """One pass of a micro-batch with the data parallelism of it."""

    phase: OperationPhase
    runs: tuple[Piece, ...]
    rounds: int
    """Number of a step's micro-batches that have this pass."""
    is_throttled: bool
    prefetch_units: int

    @property
    def names(self) -> frozenset[str]:
        """Collectives that the pass times; what else belongs to its phase is waited for in full."""
        return frozenset(call.name for piece in self.runs for call in (*piece.gathers, *piece.reductions))


def stage_passes(context: StageContext, calls: Sequence[TimedCall], work: StageWork) -> Iterator[StagePass]:
    """The passes of a stage that data parallelism accompanies: none where nothing can be hidden."""
    hidden = {timed.collective.name for timed in calls if timed.collective.is_overlappable}
    if not hidden:
        return
    unit_by_unit = communicates_unit_by_unit(context.plan)
    phases: tuple[OperationPhase, ...] = ("forward", "backward")
    for phase in phases:
        own = [timed for timed in calls if timed.collective.phase == phase]
        if not unit_by_unit:
            own = [timed for timed in own if timed.collective.name in hidden]
        elif not overlaps_reductions(context.plan):
            own = [timed for timed in own if timed.collective.kind == "all_gather"]
        for rounds, together in _by_rounds(own):
            yield StagePass(
                phase=phase,
                runs=_units(context, together, work, phase)
                if unit_by_unit
                else bucket_pieces(context, together, work, phase),
                rounds=rounds,
                is_throttled=unit_by_unit,
                prefetch_units=context.plan.layout.prefetch_units,
            )


def _by_rounds(calls: Sequence[TimedCall]) -> Iterator[tuple[int, list[TimedCall]]]:
    """The calls of each kind of micro-batch: of the one with all of them first, then of those with fewer."""
    taken = 0
    for rounds in sorted({timed.collective.rounds for timed in calls}):
        yield rounds - taken, [timed for timed in calls if timed.collective.rounds >= rounds]
        taken = rounds


def plain_runs(context: StageContext, work: StageWork, phase: OperationPhase) -> tuple[Piece, ...]:
    """The pieces of a pass without data parallelism."""
    return _units(context, [], work, phase)


def exposed_calls(one: StagePass) -> tuple[ExposedCall, ...]:
    """Exposed seconds of each collective of a pass."""
    if (
        not one.is_throttled
        and one.phase == "backward"
        and sum(piece.count for piece in one.runs) > MOST_SIMULATED_BUCKETS
    ):
        queued = queued_reductions(one.runs)
        if queued is not None:
            return queued
    return pass_time(one.runs, is_throttled=one.is_throttled, prefetch_units=one.prefetch_units).exposed


def _units(
    context: StageContext, calls: Sequence[TimedCall], work: StageWork, phase: OperationPhase
) -> tuple[Piece, ...]:
    """Blocks in the order of the pass, between the embedding and the head."""
    names: dict[tuple[object, ...], str] = {}
    unit_of = {
        f"blocks[{unit.run}]": names.setdefault((unit.is_block, unit.base, unit.adapter), unit.name)
        for unit in context.units
        if unit.is_block
    }
    unit_of["embedding"] = TABLES
    return tuple(_piece(block, phase, _of_unit(calls, unit_of.get(block.name, ""))) for block in work.in_order(phase))


def _of_unit(calls: Sequence[TimedCall], unit: str) -> list[TimedCall]:
    """Calls that gather or reduce a unit, its dense and its routed weights."""
    wanted = {
        name
        for part in (unit, f"{unit} experts")
        for name in (
            f"all-gather {part}",
            f"reduce-scatter {part}",
            f"exchange {part}",
            f"all-reduce {part} over replicas",
        )
    }
    return [timed for timed in calls if timed.collective.name in wanted]


def _piece(block: BlockWork, phase: OperationPhase, calls: Sequence[TimedCall]) -> Piece:
    found = {timed.collective.name: timed.task() for timed in calls}
    gathers = tuple(call for call in found.values() if call.category == "all_gather")
    scatters = tuple(call for call in found.values() if call.category in ("reduce_scatter", "all_to_all"))
    others = tuple(call for call in found.values() if call.category == "all_reduce")
    return Piece(
        works=block.works(phase),
        waits=block.waits(phase),
        gathers=gathers,
        reductions=(*scatters, *others),
        count=block.count,
        issue_s=block.issue_s(phase),
    )
