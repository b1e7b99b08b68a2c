"""Passes whose gradients are reduced, or whose weights are gathered, bucket by bucket: DDP, ZeRO-1 and 2, Megatron.

A pass is cut where a bucket is complete: its reduction starts when its last gradient is there, while backward goes on.
In forward the same buckets are gathered the other way round. Inside a unit gradients come as its elements are worked
through.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from shardwise.predict.block_tasks import TimedCall
from shardwise.predict.passes import Piece
from shardwise.predict.stage_work import StageWork
from shardwise.predict.tasks import COMPUTE, ExposedCall
from shardwise.simulate.engine import Task
from shardwise.step.gradient_buckets import BucketedGradients, Moment, bucketed_gradients
from shardwise.step.inventory import OperationPhase
from shardwise.step.stage_context import StageContext
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
    """The head, a block or the embedding in a pass."""

    before_s: Seconds
    """Seconds of recomputation, which makes no gradients."""
    duration_s: Seconds

    @property
    def whole_s(self) -> Seconds:
        """Seconds of recomputation and of the backward."""
        return self.before_s + self.duration_s


def bucket_pieces(
    context: StageContext, calls: Sequence[TimedCall], stage: StageWork, phase: OperationPhase
) -> tuple[Piece, ...]:
    """A pass cut between its buckets, computation and waits in proportion to its parts.

    Gathers, and reductions over two groups, are cut at the ends of blocks, so that equal blocks are run once.
    """
    units = tuple(_units(stage, phase))
    whole_s = sum(unit.whole_s for unit in units)
    waits, issue_s = stage.all_waits(phase), stage.issue_s(phase)
    is_whole_blocks = phase == "forward" or len({timed.collective.axis for timed in calls}) > 1
    cuts: dict[Moment, list[Task]] = {}
    for gradients in bucketed_gradients(context):
        for moment, call in _calls_of(calls, gradients):
            cuts.setdefault(Moment(moment.index, 1.0) if is_whole_blocks else moment, []).append(call)
    end = Moment(len(units) - 1, 1.0)
    pieces: list[Piece] = []
    before = Moment(-1, 1.0)
    for moment in sorted({*cuts, end}):
        duration_s = _between_s(units, before, moment)
        if moment in cuts or duration_s:
            share = duration_s / whole_s if whole_s else 1.0
            work = Task(name=f"{phase} of one bucket", stream=COMPUTE, duration_s=duration_s, category=phase)
            own = cuts.get(moment, ())
            pieces.append(
                Piece(
                    works=(work,),
                    waits=tuple(replace(call, duration_s=share * call.duration_s) for call in waits),
                    gathers=tuple(call for call in own if call.category == "all_gather"),
                    reductions=tuple(call for call in own if call.category != "all_gather"),
                    issue_s=share * issue_s,
                )
            )
        before = moment
    return tuple(_counted(pieces if phase == "backward" else reversed(pieces)))


def _between_s(units: Sequence[_Unit], start: Moment, end: Moment) -> Seconds:
    """Seconds of computation from one moment to another."""
    if start.index == end.index:
        return (end.fraction - start.fraction) * units[end.index].duration_s
    rest_s = (1 - start.fraction) * units[start.index].duration_s if start.index >= 0 else 0.0
    between_s = sum(unit.whole_s for unit in units[start.index + 1 : end.index])
    last = units[end.index]
    return rest_s + between_s + last.before_s + end.fraction * last.duration_s


def _counted(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Merge equal neighbours into one piece."""
    for piece, equal in groupby(pieces):
        yield replace(piece, count=sum(1 for _ in equal))


def _units(work: StageWork, phase: OperationPhase) -> Iterator[_Unit]:
    """Head, blocks and embedding in the order of backward."""
    for block in work.in_order("backward"):
        before_s, duration_s = (0.0, block.forward_s) if phase == "forward" else (block.recompute_s, block.backward_s)
        yield from [_Unit(before_s=before_s, duration_s=duration_s)] * block.count


def _calls_of(calls: Sequence[TimedCall], gradients: BucketedGradients) -> Iterator[tuple[Moment, Task]]:
    """Every call of every bucket, each bucket's scatter before its sum over replicas, and when the bucket is complete.

    Records of one name are those of the distinct sizes in order, then that of the last bucket.
    """
    *others, last = gradients.buckets
    sizes = tuple(dict.fromkeys(bucket.elements for bucket in others))
    own, both = gradients.name, f"{gradients.name} of both copies"
    names = (
        f"reduce-scatter {both}",
        f"reduce-scatter {own}",
        f"all-reduce {both}",
        f"all-reduce {own}",
        f"all-reduce {own} over replicas",
        f"all-gather weights after {own}",
        f"all-gather weights after {both}",
    )
    for name in names:
        named = [timed.task() for timed in calls if timed.collective.name == name]
        if not named:
            continue
        of_size = dict(zip(sizes, named[:-1], strict=True))
        for bucket in others:
            yield bucket.complete, of_size[bucket.elements]
        yield last.complete, named[-1]


def queued_reductions(pieces: Sequence[Piece]) -> tuple[ExposedCall, ...] | None:
    """Exposed seconds of one group's reductions in a pass that never waits for them; ``None`` for several groups.

    Reductions queue behind the piece that completes them. While both run, both are slowed.
    """
    pieces = [piece for run in pieces for piece in [run] * run.count]
    calls = [call for piece in pieces for call in piece.reductions]
    if len({call.stream for call in calls}) != 1:
        return None
    ratio = max(call.slowdown_ratio for call in calls)
    now_s = queued_s = line_s = 0.0
    for piece in pieces:
        left_s = max(piece.line_s, piece.issue_s)
        line_s += left_s
        common_s = min(left_s, queued_s)
        computing = sum(work.duration_s for work in piece.works) / left_s if left_s else 0.0
        now_s += left_s + (ratio - 1) * computing * common_s
        queued_s += sum(call.duration_s for call in piece.reductions) - common_s
    exposed_s = now_s + queued_s - line_s
    total_s = sum(call.duration_s for call in calls)
    by_name: dict[str, Seconds] = {}
    for call in calls:
        by_name[call.name] = by_name.get(call.name, 0.0) + call.duration_s
    return tuple(
        ExposedCall(name=name, axis=calls[0].stream, exposed_s=exposed_s * seconds / total_s if total_s else 0.0)
        for name, seconds in by_name.items()
    )
