"""The passes of every rank of a schedule from first to last, with its idle time and the work that it holds."""

from dataclasses import dataclass

from shardwise.schedules.make import make_schedule
from shardwise.schedules.shape import PipelineSchedule, ScheduleShape
from shardwise.simulate.pipeline import pipeline_spans
from shardwise.simulate.pipeline_times import PipelineTimes
from shardwise.simulate.spans import Span
from shardwise.units import Seconds

ROUNDING_S = 1e-9
"""Shorter gaps come from adding times in another order."""
DIGITS = 9
"""Moments that agree so far are the same moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLane:
    """One rank of one step."""

    rank: int
    spans: tuple[Span, ...]
    """Passes of the rank, sorted by start."""
    gaps: tuple[tuple[Seconds, Seconds], ...]
    """When it computes nothing, from the start of the step to its end."""
    held: tuple[tuple[Seconds, float], ...]
    """Micro-batches in flight from each moment on, in sets of activations of a whole rank."""

    @property
    def idle_s(self) -> Seconds:
        """All gaps together."""
        return sum(end - start for start, end in self.gaps)

    @property
    def max_held_ratio(self) -> float:
        """The most sets of activations of a whole rank that it holds at once."""
        return max((amount for _, amount in self.held), default=0.0)


def pipeline_lanes(shape: ScheduleShape, times: PipelineTimes) -> tuple[RankLane, ...]:
    """A lane for every rank.

    Raises:
        LayoutError: no order can be written for the shape.
    """
    schedule = make_schedule(shape)
    computing: list[list[Span]] = [[] for _ in range(shape.pp)]
    for span in pipeline_spans(shape, times):
        process, _, stream = span.stream.partition("/")
        if stream == "compute":
            computing[int(process.removeprefix("stage "))].append(span)
    end_s = max(span.end_s for spans in computing for span in spans)
    return tuple(_lane(rank, spans, schedule, end_s) for rank, spans in enumerate(computing))


def _lane(rank: int, spans: list[Span], schedule: PipelineSchedule, end_s: Seconds) -> RankLane:
    ordered = tuple(sorted(spans, key=lambda span: span.start_s))
    gaps = []
    before_s = 0.0
    for span in ordered:
        if span.start_s - before_s > ROUNDING_S:
            gaps.append((before_s, span.start_s))
        before_s = span.end_s
    if end_s - before_s > ROUNDING_S:
        gaps.append((before_s, end_s))
    return RankLane(rank=rank, spans=ordered, gaps=tuple(gaps), held=_held(ordered, vpp=schedule.chunks_per_rank))


def _held(spans: tuple[Span, ...], *, vpp: int) -> tuple[tuple[Seconds, float], ...]:
    """A set is held from the start of its forward to the end of its backward, or of its weight gradient if that is
    later; one set of one chunk is ``1 / vpp`` of a rank's."""
    changes: dict[Seconds, int] = {}
    for span in spans:
        if span.name == "forward":
            start_s = round(span.start_s, DIGITS)
            changes[start_s] = changes.get(start_s, 0) + 1
        elif span.name in ("backward", "weight_backward"):
            end_s = round(span.end_s, DIGITS)
            changes[end_s] = changes.get(end_s, 0) - 1
    held, found = 0, []
    for moment in sorted(changes):
        held += changes[moment]
        found.append((moment, held / vpp))
    return tuple(found)
