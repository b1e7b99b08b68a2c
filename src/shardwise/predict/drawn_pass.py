"""The spans of one pass for drawing, with the inside of every block at the time the pass gives it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise.predict.block_time import BlockRun, run_block_steps
from shardwise.predict.passes import COMPUTE, PassProgram, Piece, PieceTasks, pass_program
from shardwise.predict.stage_computation import BlockWork, StageWork
from shardwise.simulate.contention import run_contended
from shardwise.simulate.engine import Run
from shardwise.simulate.spans import Span
from shardwise.step.inventory import OperationPhase
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInside:
    """What one block of a pass does, from 0 on."""

    spans: tuple[Span, ...]
    duration_s: Seconds

    def between(self, start_s: Seconds, end_s: Seconds) -> Iterator[Span]:
        """The spans stretched to an interval."""
        ratio = (end_s - start_s) / self.duration_s if self.duration_s else 0.0
        return (_stretched(span, start_s, ratio) for span in self.spans)


def _stretched(span: Span, start_s: Seconds, ratio: float) -> Span:
    return replace(span, start_s=start_s + ratio * span.start_s, end_s=start_s + ratio * span.end_s)


def block_insides(work: StageWork, phase: OperationPhase) -> tuple[BlockInside | None, ...]:
    """The inside of every piece of a pass by units; ``None`` for tables, and for blocks that do not communicate."""
    blocks = [_inside(block, phase) for block in work.blocks]
    return (None, *(blocks if phase == "forward" else reversed(blocks)), None)


def _inside(block: BlockWork, phase: OperationPhase) -> BlockInside | None:
    if block.runs is None:
        return None
    if phase == "forward":
        return _after_each_other(block.name, [(block.runs.forward, 1.0)])
    again, share = block.runs.recompute, block.recomputed_fraction
    if again is not None and share:
        return _after_each_other(block.name, [(again, share), (block.runs.backward, 1.0)])
    return _after_each_other(block.name, [(block.runs.backward, 1.0)], before_s=block.recompute_s)


def _after_each_other(name: str, runs: Iterable[tuple[BlockRun, float]], *, before_s: Seconds = 0.0) -> BlockInside:
    """Runs of a block one after the other, each at a share of its length."""
    spans: list[Span] = []
    if before_s:
        spans.append(Span(stream=COMPUTE, name=f"recompute {name}", category="recompute", start_s=0.0, end_s=before_s))
    now = before_s
    for run, share in runs:
        for span in run_block_steps(run.steps).spans:
            named = replace(span, name=f"{span.category} {name}: {span.name}") if span.stream == COMPUTE else span
            spans.append(_stretched(named, now, share))
        now += share * run.duration_s
    return BlockInside(spans=tuple(spans), duration_s=now)


def drawn_pass(
    runs: Sequence[Piece],
    insides: Sequence[BlockInside | None],
    *,
    is_throttled: bool,
    prefetch_units: int = 1,
) -> tuple[Span, ...]:
    """The spans of a pass from 0 on, on streams without their stage."""
    program = pass_program(runs, is_throttled=is_throttled, prefetch_units=prefetch_units)
    run = run_contended(program.tasks, program.contentions)
    return tuple(_filled(program, run, insides))


def _filled(program: PassProgram, run: Run, insides: Sequence[BlockInside | None]) -> Iterator[Span]:
    spans = run.spans
    for piece in program.pieces:
        inside = insides[piece.index]
        if inside is None:
            yield from (spans[position] for position in piece.tasks)
            continue
        yield from (spans[position] for position in piece.tasks if position not in piece.line)
        yield from inside.between(*_interval(piece, run))


def _interval(piece: PieceTasks, run: Run) -> tuple[Seconds, Seconds]:
    return run.starts_s[piece.line[0]], run.ends_s[piece.line[-1]]


def drawn_buckets(runs: Sequence[Piece], plain: Sequence[Span]) -> tuple[Span, ...]:
    """A pass cut between buckets: its collectives, and beside them a plain pass as long as its line."""
    program = pass_program(runs, is_throttled=False)
    run = run_contended(program.tasks, program.contentions)
    in_line = {position for piece in program.pieces for position in piece.line}
    end_s = max(run.ends_s[position] for position in in_line)
    plain_s = max((span.end_s for span in plain), default=0.0)
    ratio = end_s / plain_s if plain_s else 0.0
    beside = (span for position, span in enumerate(run.spans) if position not in in_line)
    return (*beside, *(_stretched(span, 0.0, ratio) for span in plain))
