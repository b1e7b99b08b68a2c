"""Lanes of a timeline: one per stream of every drawn rank, computation first, and the colours of what runs on them."""

from dataclasses import dataclass

from shardwise.predict.timeline import StepTimeline, TimelineRank
from shardwise.simulate.spans import Span, SpanCategory

STREAM_ORDER = (
    "compute",
    "tp",
    "cp",
    "ep",
    "dp_shard",
    "dp_replicate",
    "pp",
    "pp forward",
    "pp backward",
    "to the device",
    "to the host",
    "host",
)
SPAN_COLOURS: dict[SpanCategory, str] = {
    "forward": "#0072b2",
    "backward": "#009e73",
    "recompute": "#56b4e9",
    "optimizer": "#cc79a7",
    "offload": "#8c6d31",
    "all_gather": "#e69f00",
    "reduce_scatter": "#d55e00",
    "all_reduce": "#f0e442",
    "all_to_all": "#b3446c",
    "send_recv": "#999999",
    "broadcast": "#654522",
}
"""Okabe and Ito's palette, computation in blues and greens, communication in warm colours."""
OTHER_COLOUR = "#cccccc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One stream of one rank."""

    rank: TimelineRank
    stream: str
    """Without its stage."""
    spans: tuple[Span, ...]
    """By start."""


def timeline_lanes(timeline: StepTimeline) -> tuple[Lane, ...]:
    """The lanes of all ranks, one rank after the other."""
    lanes: list[Lane] = []
    for rank in timeline.ranks:
        found: dict[str, list[Span]] = {}
        for span in rank.spans:
            found.setdefault(span.stream.partition("/")[2], []).append(span)
        lanes += [
            Lane(rank=rank, stream=stream, spans=tuple(sorted(found[stream], key=lambda span: span.start_s)))
            for stream in sorted(found, key=_place)
        ]
    return tuple(lanes)


def _place(stream: str) -> tuple[int, str]:
    return (STREAM_ORDER.index(stream) if stream in STREAM_ORDER else len(STREAM_ORDER), stream)


def span_colour(category: SpanCategory) -> str:
    """The colour of a span."""
    return SPAN_COLOURS.get(category, OTHER_COLOUR)


def rank_title(rank: TimelineRank) -> str:
    """How a drawn rank is called."""
    return f"stage {rank.stage}, rank {rank.rank} (simulated)"
