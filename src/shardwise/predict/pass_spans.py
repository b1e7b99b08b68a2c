"""The spans of one pass as it was simulated: its blocks with the collectives inside them, and what ran beside it."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from shardwise.predict.block_time import BlockTime, block_spans
from shardwise.predict.passes import Piece, pass_program
from shardwise.predict.stage_work import BlockWork, StageWork
from shardwise.predict.tasks import COMPUTE, exposed_by_task, run_tasks
from shardwise.predict.timeline_split import COMMUNICATION, Interval, split_rank
from shardwise.simulate.engine import Task
from shardwise.simulate.spans import Span
from shardwise.step.inventory import OperationPhase
from shardwise.units import Seconds

ROUNDING = 1e-12
"""Spans whose sum is shorter than this share of their pass are left out."""
SpanKey = tuple[str, str]
"""Name and stream of a collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSpans:
    """The spans of one pass from time 0 on; names of streams lack the stage, and ``compute`` is one of them."""

    spans: tuple[Span, ...]
    duration_s: Seconds

    @property
    def exposed(self) -> dict[SpanKey, Seconds]:
        """Seconds by which each collective makes the pass longer; 0 for hidden ones."""
        found: dict[SpanKey, Seconds] = {}
        for span in self.spans:
            if span.category in COMMUNICATION:
                key = (span.name, span.stream)
                found[key] = found.get(key, 0.0) + span.exposed_s
        return found

    def fitted(self, duration_s: Seconds, *, waits_ratio: float = 1.0) -> "PassSpans":
        """This pass in another duration: waits take ``waits_ratio`` times as long, computation takes the rest."""
        waits = split_rank(self.spans, step_s=self.duration_s).exposed
        moved = _moved(waits, self.duration_s, duration_s, waits_ratio)
        free_s: dict[str, Seconds] = {}
        spans: list[Span] = []
        for span in sorted(self.spans, key=lambda span: span.start_s):
            start_s, end_s = moved(span.start_s), moved(span.end_s)
            if waits_ratio < 1 and span.stream != COMPUTE:
                # What is no longer waited for runs beside the computation before.
                start_s = min(start_s, max(free_s.get(span.stream, 0.0), end_s - span.duration_s))
                free_s[span.stream] = end_s
            spans.append(replace(span, start_s=start_s, end_s=end_s))
        return PassSpans(spans=tuple(spans), duration_s=duration_s)

    def laid(self, ratios: Mapping[SpanKey, float]) -> "PassSpans":
        """This pass with the exposed seconds of each collective times its ratio, or times 0 where none is given."""
        spans = (replace(span, exposed_s=_times(span, ratios)) if span.exposed_s else span for span in self.spans)
        return replace(self, spans=tuple(spans))

    def summary(self) -> "PassSpans":
        """This pass with one span for each kind of computation, then one for the exposed part of each collective.

        The hidden part of a collective is a span of its own beside computation. All sums are those of the pass.
        """
        least_s = ROUNDING * self.duration_s
        split = split_rank(self.spans, step_s=self.duration_s)
        works = _by(self.spans, lambda span: (span.category, span.stream) if span.stream == COMPUTE else None)
        calls = _by(self.spans, lambda span: (span.name, span.stream) if span.category in COMMUNICATION else None)
        computed_s = sum(span.duration_s for spans in works.values() for span in spans)
        work_ratio = (self.duration_s - split.exposed_communication_s) / computed_s if computed_s else 0.0
        found: list[Span] = []
        now = 0.0
        for (category, _), spans in works.items():
            end_s = now + work_ratio * sum(span.duration_s for span in spans)
            found.append(replace(spans[0], name=category, start_s=now, end_s=end_s))
            now = end_s
        waited_s = {key: _within_s(spans, split.exposed) for key, spans in calls.items()}
        for stream in dict.fromkeys(stream for _, stream in calls):
            hidden_until_s, own = 0.0, [key for key in calls if key[1] == stream]
            # Where streams wait at once, the later one has its waits beside those of the other.
            start_s = min(now, self.duration_s - sum(waited_s[key] for key in own))
            for key in own:
                first, total_s = calls[key][0], sum(span.duration_s for span in calls[key])
                hidden_s, wait_s = total_s - waited_s[key], waited_s[key]
                # What is hidden all the time may be exposed by slowing computation down.
                both = (hidden_until_s, hidden_s, wait_s <= least_s), (start_s, wait_s, wait_s > least_s)
                exposed_s = sum(span.exposed_s for span in calls[key])
                found += (
                    replace(first, start_s=from_s, end_s=from_s + seconds, exposed_s=exposed_s if is_exposed else 0.0)
                    for from_s, seconds, is_exposed in both
                )
                hidden_until_s += hidden_s
                start_s += wait_s
            now = max(now, start_s)
        return replace(self, spans=tuple(span for span in found if span.duration_s > least_s))


def _by(spans: Iterable[Span], key_of: Callable[[Span], SpanKey | None]) -> dict[SpanKey, list[Span]]:
    """Spans together that have one key; those without are left out."""
    found: dict[SpanKey, list[Span]] = {}
    for span in spans:
        key = key_of(span)
        if key is not None:
            found.setdefault(key, []).append(span)
    return found


def _within_s(spans: Iterable[Span], intervals: Sequence[Interval]) -> Seconds:
    """Return the seconds of some spans that lie within disjoint intervals."""
    begins_s = [start_s for start_s, _ in intervals]
    total_s = 0.0
    for span in spans:
        for start_s, end_s in intervals[max(0, bisect_right(begins_s, span.start_s) - 1) :]:
            if start_s >= span.end_s:
                break
            total_s += max(0.0, min(end_s, span.end_s) - max(start_s, span.start_s))
    return total_s


def _times(span: Span, ratios: Mapping[SpanKey, float]) -> Seconds:
    return span.exposed_s * ratios.get((span.name, span.stream), 0.0)


def _moved(
    waits: Sequence[Interval], duration_s: Seconds, new_s: Seconds, waits_ratio: float
) -> Callable[[Seconds], Seconds]:
    """Where a moment of a pass comes to lie when the waits are stretched by one ratio and the rest by another."""
    begins_s = [start_s for start_s, _ in waits]
    before_s = [0.0, *accumulate(end_s - start_s for start_s, end_s in waits)]
    waited_s = before_s[-1]
    wait_ratio = min(waits_ratio, new_s / waited_s) if waited_s else 1.0
    worked_s = duration_s - waited_s
    work_ratio = (new_s - wait_ratio * waited_s) / worked_s if worked_s > 0 else 0.0

    def moved(moment_s: Seconds) -> Seconds:
        number = bisect_right(begins_s, moment_s)
        so_far_s = 0.0
        if number:
            start_s, end_s = waits[number - 1]
            so_far_s = before_s[number - 1] + min(moment_s, end_s) - start_s
        return wait_ratio * so_far_s + work_ratio * (moment_s - so_far_s)

    return moved


def simulated_pass(
    runs: Sequence[Piece], work: StageWork, phase: OperationPhase, *, is_throttled: bool, prefetch_units: int = 1
) -> PassSpans:
    """A pass by units: run as for its time, every piece of it, with the inside of its blocks."""
    program = pass_program(runs, is_throttled=is_throttled, prefetch_units=prefetch_units)
    run = run_tasks(program.tasks)
    exposed = exposed_by_task(run, program.line)
    spans = run.spans
    insides = [_inside(block, phase) for block in work.in_order(phase)]
    found: list[Span] = []
    for piece in program.pieces:
        for position in piece.tasks:
            if position not in piece.line:
                found.append(replace(spans[position], exposed_s=exposed.get(position, 0.0)))
        start_s, end_s = run.starts_s[piece.line[0]], run.ends_s[piece.line[-1]]
        found += _shifted(insides[piece.index].fitted(end_s - start_s).spans, start_s)
    return _from_zero(found)


def bucketed_pass(runs: Sequence[Piece], plain: PassSpans) -> PassSpans:
    """A pass cut between buckets: its collectives, and beside them a plain pass as long as its line."""
    program = pass_program(runs, is_throttled=False)
    run, line = run_tasks(program.tasks), program.line
    exposed = exposed_by_task(run, line)
    beside = set(range(len(run.tasks))).difference(line)
    others = (replace(run.spans[position], exposed_s=exposed.get(position, 0.0)) for position in sorted(beside))
    return _from_zero([*others, *plain.fitted(max(run.ends_s[position] for position in line)).spans])


def _from_zero(spans: Iterable[Span]) -> PassSpans:
    spans = tuple(span for span in spans if span.duration_s > 0)
    return PassSpans(spans=spans, duration_s=max((span.end_s for span in spans), default=0.0))


def _shifted(spans: Iterable[Span], by_s: Seconds) -> Iterator[Span]:
    return (replace(span, start_s=span.start_s + by_s, end_s=span.end_s + by_s) for span in spans)


def _inside(block: BlockWork, phase: OperationPhase) -> PassSpans:
    """The spans of one block of a pass."""
    if block.times is None:
        return _line((*block.works(phase), *block.waits(phase)))
    if phase == "forward":
        return _in_turn(block.name, [(block.times.forward, 1.0)])
    again, share = block.times.recompute, block.recomputed_fraction
    if again is not None and share:
        return _in_turn(block.name, [(again, share), (block.times.backward, 1.0)])
    return _in_turn(block.name, [(block.times.backward, 1.0)], before_s=block.recompute_s)


def _line(tasks: Iterable[Task]) -> PassSpans:
    """Tasks one after the other, where computation waits for the collectives among them."""
    spans: list[Span] = []
    now = 0.0
    for task in tasks:
        end_s = now + task.duration_s
        exposed_s = 0.0 if task.stream == COMPUTE else task.duration_s
        spans.append(
            Span(
                stream=task.stream,
                name=task.name,
                category=task.category,
                start_s=now,
                end_s=end_s,
                exposed_s=exposed_s,
            )
        )
        now = end_s
    return PassSpans(spans=tuple(spans), duration_s=now)


def _in_turn(name: str, runs: Iterable[tuple[BlockTime, float]], *, before_s: Seconds = 0.0) -> PassSpans:
    """Runs of a block one after the other, each at a share of its length."""
    spans: list[Span] = []
    if before_s:
        spans.append(Span(stream=COMPUTE, name=f"recompute {name}", category="recompute", start_s=0.0, end_s=before_s))
    now = before_s
    for run, share in runs:
        for span in block_spans(run):
            spans.append(
                replace(
                    span,
                    name=f"{span.category} {name}: {span.name}" if span.stream == COMPUTE else span.name,
                    start_s=now + share * span.start_s,
                    end_s=now + share * span.end_s,
                    exposed_s=share * span.exposed_s,
                )
            )
        now += share * run.duration_s
    return PassSpans(spans=tuple(spans), duration_s=now)
