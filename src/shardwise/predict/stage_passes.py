"""What a stage waits for because of data parallelism: its passes in the event engine.

FSDP and ZeRO-3 gather and reduce block by block. DDP, Megatron and ZeRO-2 do so bucket by bucket: a pass is cut into as
many equal pieces as there are buckets. Pipelines and gradient accumulation without deferral differ only in how often
such a pass happens, which the inventory's ``rounds`` say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise.ledger import TimeComponent
from shardwise.predict.block_runs import BlockRuns, TimedCall
from shardwise.predict.concurrency import overlapped_s
from shardwise.predict.pass_time import ExposedCall, pass_time
from shardwise.predict.passes import PassCall, PassWork, Piece
from shardwise.step.inventory import Axis, OperationPhase
from shardwise.step.reduction_policy import overlaps_reductions, shards_unit_by_unit
from shardwise.step.stage_context import StageContext
from shardwise.units import Seconds

TABLES = "embedding and head"
MOST_SIMULATED_BUCKETS = 32
"""Passes of more buckets are timed by the closed form of their queue, which is exact for one kind of reduction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWork:
    """One block of a run for one micro-batch, with its part of what the stage does in all its blocks."""

    name: str
    count: int
    forward_s: Seconds
    """On the device, as all of these."""
    backward_s: Seconds
    recompute_s: Seconds
    forward_issue_s: Seconds = 0.0
    """To launch it."""
    backward_issue_s: Seconds = 0.0
    """With what is recomputed."""
    forward_waits: tuple[PassCall, ...] = ()
    """What of the collectives inside it nothing hides."""
    backward_waits: tuple[PassCall, ...] = ()
    """With those of what is recomputed."""
    runs: BlockRuns | None = None
    """Its steps, when it communicates."""
    recomputed_fraction: float = 0.0
    """Of the blocks of the run."""

    def waits(self, phase: OperationPhase) -> tuple[PassCall, ...]:
        """Of a pass."""
        return self.forward_waits if phase == "forward" else self.backward_waits

    def issue_s(self, phase: OperationPhase) -> Seconds:
        """Of a pass."""
        return self.forward_issue_s if phase == "forward" else self.backward_issue_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWork:
    """The embedding or the head for one micro-batch."""

    forward_s: Seconds = 0.0
    backward_s: Seconds = 0.0
    forward_issue_s: Seconds = 0.0
    backward_issue_s: Seconds = 0.0
    forward_waits: tuple[PassCall, ...] = ()
    backward_waits: tuple[PassCall, ...] = ()

    def duration_s(self, phase: OperationPhase) -> Seconds:
        """Of a pass."""
        return self.forward_s if phase == "forward" else self.backward_s

    def waits(self, phase: OperationPhase) -> tuple[PassCall, ...]:
        """Of a pass."""
        return self.forward_waits if phase == "forward" else self.backward_waits

    def issue_s(self, phase: OperationPhase) -> Seconds:
        """Of a pass."""
        return self.forward_issue_s if phase == "forward" else self.backward_issue_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWork:
    """Computation of one stage for one micro-batch, in model order."""

    blocks: tuple[BlockWork, ...]
    embedding: TableWork = TableWork()
    head: TableWork = TableWork()

    def faster(self, *, forward: float, backward: float) -> "StageWork":
        """The same with computation at a ratio of its time, as launches that run ahead make it."""
        if forward == backward == 1.0:
            return self
        blocks = (
            replace(
                block,
                forward_s=forward * block.forward_s,
                backward_s=backward * block.backward_s,
                recompute_s=backward * block.recompute_s,
            )
            for block in self.blocks
        )
        embedding, head = (
            replace(table, forward_s=forward * table.forward_s, backward_s=backward * table.backward_s)
            for table in (self.embedding, self.head)
        )
        return replace(self, blocks=tuple(blocks), embedding=embedding, head=head)

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
    prefetch_units: int
    names: frozenset[str]
    """Collectives that the pass times; what else belongs to its phase is waited for in full."""


def stage_passes(context: StageContext, calls: Sequence[TimedCall], work: StageWork) -> Iterator[StagePass]:
    """The passes of a stage that data parallelism accompanies."""
    hidden = {timed.collective.name for timed in calls if timed.collective.is_overlappable}
    unit_by_unit = shards_unit_by_unit(context.plan)
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
                runs=_units(context, together, work, phase) if unit_by_unit else _buckets(together, work, phase),
                rounds=rounds,
                is_throttled=unit_by_unit,
                prefetch_units=context.plan.layout.prefetch_units,
                names=frozenset(timed.collective.name for timed in together),
            )


def _by_rounds(calls: Sequence[TimedCall]) -> Iterator[tuple[int, list[TimedCall]]]:
    """The calls of each kind of micro-batch: of the one with all of them first, then of those with fewer."""
    taken = 0
    for rounds in sorted({timed.collective.rounds for timed in calls}):
        yield rounds - taken, [timed for timed in calls if timed.collective.rounds >= rounds]
        taken = rounds


def plain_runs(context: StageContext, work: StageWork, phase: OperationPhase) -> tuple[Piece, ...]:
    """A pass without data parallelism."""
    return _units(context, [], work, phase)


def exposed_calls(one: StagePass) -> tuple[ExposedCall, ...]:
    """What the collectives of a pass add to it."""
    most = max(piece.count for piece in one.runs)
    if not one.is_throttled and one.phase == "backward" and most > MOST_SIMULATED_BUCKETS:
        return _queued(*one.runs)
    return pass_time(one.runs, is_throttled=one.is_throttled, prefetch_units=one.prefetch_units).exposed


def _queued(regular: Piece, last: Piece) -> tuple[ExposedCall, ...]:
    """Many buckets whose reductions computation never waits for.

    The first piece computes alone and the last bucket is reduced alone. Between them the reductions of one piece run
    under the next one, or lag behind all of them: in both cases what is common to both sides is slowed.
    """
    num_left = regular.count - 1
    line_s, reduce_s = _line_s(regular), _longest_stream_s(regular)
    last_line_s = _line_s(last)
    common_s, ratio = min(line_s, reduce_s), _diluted_ratio(regular)
    middle_s = num_left * (line_s + (ratio - 1) * common_s)
    behind_s = regular.count * reduce_s - num_left * common_s
    middle_s += overlapped_s(work_s=last_line_s, hidden_s=behind_s, ratio=_diluted_ratio(last))
    last_s = sum(call.duration_s for call in last.reductions)
    exposed_s = middle_s + last_s - num_left * line_s - last_line_s
    totals = [(call, piece.count * call.duration_s) for piece in (regular, last) for call in piece.reductions]
    total_s = sum(duration for _, duration in totals)
    return tuple(
        ExposedCall(name=call.name, axis=call.axis, exposed_s=exposed_s * duration / total_s)
        for call, duration in totals
        if duration
    )


def _line_s(piece: Piece) -> Seconds:
    return max(piece.line_s, piece.issue_s)


def _longest_stream_s(piece: Piece) -> Seconds:
    """Reductions of the busiest axis."""
    by_axis: dict[str, Seconds] = {}
    for call in piece.reductions:
        by_axis[call.axis] = by_axis.get(call.axis, 0.0) + call.duration_s
    return max(by_axis.values(), default=0.0)


def _diluted_ratio(piece: Piece) -> float:
    """How many times longer a piece and its reductions take together, where only computation is slowed."""
    line_s = _line_s(piece)
    ratio = max((call.slowdown_ratio for call in piece.reductions), default=1.0)
    return 1 + (ratio - 1) * (sum(work.duration_s for work in piece.works) / line_s if line_s else 0.0)


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
        replace(
            _unit(_of_unit(calls, name_of_run[run]), _works(block, phase), block.waits(phase)),
            count=block.count,
            issue_s=block.issue_s(phase),
        )
        for run, block in enumerate(work.blocks)
    ]
    embedding = _table_unit(_of_unit(calls, TABLES), "embedding", phase, work.embedding)
    head = _table_unit([], "head", phase, work.head)
    return (embedding, *blocks, head) if phase == "forward" else (head, *reversed(blocks), embedding)


def _table_unit(calls: Sequence[TimedCall], name: str, phase: OperationPhase, table: TableWork) -> Piece:
    category: TimeComponent = "forward" if phase == "forward" else "backward"
    work = PassWork(name=f"{phase} {name}", category=category, duration_s=table.duration_s(phase))
    return replace(_unit(calls, (work,), table.waits(phase)), issue_s=table.issue_s(phase))


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


def _unit(calls: Sequence[TimedCall], works: tuple[PassWork, ...], waits: tuple[PassCall, ...]) -> Piece:
    found = {timed.collective.name: _pass_call(timed) for timed in calls}
    gathers = tuple(call for call in found.values() if call.kind == "all_gather")
    scatters = tuple(call for call in found.values() if call.kind in ("reduce_scatter", "all_to_all"))
    others = tuple(call for call in found.values() if call.kind == "all_reduce")
    return Piece(works=works, waits=waits, gathers=gathers, reductions=(*scatters, *others))


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


def _all_waits(work: StageWork, phase: OperationPhase) -> tuple[PassCall, ...]:
    """What a whole pass waits for inside its blocks and tables, equal names together."""
    found: dict[tuple[str, str], PassCall] = {}
    blocks = [(block.count, call) for block in work.blocks for call in block.waits(phase)]
    tables = [(1, call) for table in (work.embedding, work.head) for call in table.waits(phase)]
    for count, call in blocks + tables:
        before = found.get((call.name, call.axis))
        duration_s = count * call.duration_s + (before.duration_s if before else 0.0)
        found[call.name, call.axis] = replace(call, duration_s=duration_s)
    return tuple(found.values())


def _shares(waits: tuple[PassCall, ...], num_pieces: int) -> tuple[PassCall, ...]:
    return tuple(replace(call, duration_s=call.duration_s / max(1, num_pieces)) for call in waits)


def _buckets(calls: Sequence[TimedCall], work: StageWork, phase: OperationPhase) -> tuple[Piece, ...]:
    """A pass cut between its buckets: equal ones, and one with the embedding at the end (in forward at the start).

    The pass has as many pieces as the most frequent collective has buckets. A last bucket that is larger than the
    others is the embedding's, which backward computes last.
    """
    of_name: dict[tuple[str, Axis], list[TimedCall]] = {}
    for timed in calls:
        of_name.setdefault((timed.collective.name, timed.collective.axis), []).append(timed)
    num_pieces = max(sum(_num_buckets(timed) for timed in own) for own in of_name.values())
    between: list[PassCall] = []
    at_edge: list[PassCall] = []
    has_table = False
    for own in of_name.values():
        edge, others = own[-1], own[:-1]
        at_edge.append(_pass_call(edge))
        has_table |= any(edge.call_s > other.call_s for other in others)
        between += [_pass_call(timed, share=_num_buckets(timed) / (num_pieces - 1)) for timed in others]
    table_s = work.embedding.duration_s(phase)
    total_s = _pass_s(work, phase)
    edge_s = table_s if has_table else total_s / num_pieces
    waits = _all_waits(work, phase)
    num_waiting = num_pieces - 1 if has_table else num_pieces
    regular = _bucket_piece(phase, between, (total_s - edge_s) / max(1, num_pieces - 1))
    issue_s = _issue_s(work, phase) / num_pieces
    regular = replace(regular, waits=_shares(waits, num_waiting), count=num_pieces - 1, issue_s=issue_s)
    edge_piece = replace(_bucket_piece(phase, at_edge, edge_s), issue_s=issue_s)
    edge_piece = edge_piece if has_table else replace(edge_piece, waits=_shares(waits, num_waiting))
    if num_pieces == 1:
        return (edge_piece,)
    return (edge_piece, regular) if phase == "forward" else (regular, edge_piece)


def _num_buckets(timed: TimedCall) -> int:
    return timed.collective.count // timed.collective.rounds


def _bucket_piece(phase: OperationPhase, calls: Sequence[PassCall], duration_s: Seconds) -> Piece:
    category: TimeComponent = "forward" if phase == "forward" else "backward"
    reductions = (call for call in calls if call.kind != "all_gather")
    return Piece(
        works=(PassWork(name=f"{phase} of one bucket", category=category, duration_s=duration_s),),
        gathers=tuple(call for call in calls if call.kind == "all_gather"),
        reductions=tuple(sorted(reductions, key=lambda call: call.kind, reverse=True)),
    )


def _issue_s(work: StageWork, phase: OperationPhase) -> Seconds:
    """To launch the whole pass."""
    blocks_s = sum(block.count * block.issue_s(phase) for block in work.blocks)
    return blocks_s + work.embedding.issue_s(phase) + work.head.issue_s(phase)


def _pass_s(work: StageWork, phase: OperationPhase) -> Seconds:
    """Computation of the whole pass."""
    tables_s = work.embedding.duration_s(phase) + work.head.duration_s(phase)
    if phase == "forward":
        return tables_s + sum(block.count * block.forward_s for block in work.blocks)
    return tables_s + sum(block.count * (block.backward_s + block.recompute_s) for block in work.blocks)
