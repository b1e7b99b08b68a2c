"""The time of a drawn step on one rank's device, split by use: the parts sum to the step."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import get_args

from shardwise.predict.tasks import COMPUTE
from shardwise.simulate.spans import Span
from shardwise.step.inventory import CollectiveKind
from shardwise.units import Seconds

Interval = tuple[Seconds, Seconds]
COMMUNICATION = get_args(CollectiveKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSplit:
    """The parts of one rank's step, as ``shardwise profile`` defines them for a measured one."""

    compute_s: Seconds
    """Time in which something is computed, slower where communication runs beside it."""
    exposed_communication_s: Seconds
    """Time in which a collective or message runs and nothing is computed."""
    offload_s: Seconds
    """Time in which only copies to or from the host, or the update there, run."""
    idle_s: Seconds
    """Seconds of waiting for other stages: the rest."""
    exposed: tuple[Interval, ...]
    """Intervals in which communication is exposed."""


def split_rank(spans: Sequence[Span], *, step_s: Seconds) -> RankSplit:
    """The parts of one rank's spans.

    >>> def span(stream, category, start_s, end_s):
    ...     return Span(stream=stream, name="", category=category, start_s=start_s, end_s=end_s)
    >>> found = split_rank(
    ...     [span("stage 0/compute", "forward", 0.0, 3.0), span("stage 0/tp", "all_reduce", 2.0, 5.0)], step_s=7.0
    ... )
    >>> found.compute_s, found.exposed_communication_s, found.idle_s, found.exposed
    (3.0, 2.0, 2.0, ((3.0, 5.0),))
    """
    computing = [span for span in spans if is_computing(span)]
    copying = [span for span in spans if span.category == "offload"]
    others = [span for span in spans if not is_computing(span) and span.category in COMMUNICATION]
    compute = _joined(computing, step_s)
    exposed = tuple(_outside(_joined(others, step_s), compute))
    alone = _outside(_joined(copying, step_s), _merged([*compute, *exposed]))
    compute_s, exposed_s, offload_s = _total_s(compute), _total_s(exposed), _total_s(alone)
    return RankSplit(
        compute_s=compute_s,
        exposed_communication_s=exposed_s,
        offload_s=offload_s,
        idle_s=max(0.0, step_s - compute_s - exposed_s - offload_s),
        exposed=exposed,
    )


def is_computing(span: Span) -> bool:
    """Whether a span is on a stream of kernels, with its stage or without."""
    return span.stream.rpartition("/")[2] == COMPUTE


def _joined(spans: Iterable[Span], step_s: Seconds) -> list[Interval]:
    """Intervals in which at least one span runs, before the slowest rank's step is over."""
    return _merged((span.start_s, min(span.end_s, step_s)) for span in spans if min(span.end_s, step_s) > span.start_s)


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Disjoint intervals that cover the same time, in order."""
    merged: list[Interval] = []
    for start_s, end_s in sorted(intervals):
        if merged and start_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end_s))
        else:
            merged.append((start_s, end_s))
    return merged


def _outside(intervals: Sequence[Interval], covers: Sequence[Interval]) -> Iterator[Interval]:
    """The parts of ``intervals`` that no interval of ``covers`` overlaps; both are disjoint and in order."""
    first = 0
    for begin_s, end_s in intervals:
        while first < len(covers) and covers[first][1] <= begin_s:
            first += 1
        at, now_s = first, begin_s
        while at < len(covers) and covers[at][0] < end_s:
            if covers[at][0] > now_s:
                yield now_s, covers[at][0]
            now_s = max(now_s, covers[at][1])
            at += 1
        if now_s < end_s:
            yield now_s, end_s


def _total_s(intervals: Iterable[Interval]) -> Seconds:
    return sum((end_s - start_s for start_s, end_s in intervals), 0.0)
