"""Lanes of a timeline: one per stream of every drawn rank, computation first, and the colours of what runs on them."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.ledger import TimeComponent
from shardwise.predict.timeline import StepTimeline, TimelineCall, TimelineRank, TimelineSource
from shardwise.simulate.spans import Span, SpanCategory
from shardwise.units import Seconds, format_decimal_bytes

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
    "drives",
    "launches",
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
PART_COLOURS: dict[TimeComponent, str] = {
    "forward": SPAN_COLOURS["forward"],
    "backward": SPAN_COLOURS["backward"],
    "recompute": SPAN_COLOURS["recompute"],
    "optimizer": SPAN_COLOURS["optimizer"],
    "exposed_communication": "#d55e00",
    "pipeline_bubble": "#c4c4c4",
    "offload": SPAN_COLOURS["offload"],
    "other": "#848482",
}
"""The parts of a step, with the colours of what runs in them."""


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


def timeline_end_s(timeline: StepTimeline) -> Seconds:
    """When the last span of any drawn rank ends."""
    return max([timeline.step_s, *(span.end_s for rank in timeline.ranks for span in rank.spans)])


def _place(stream: str) -> tuple[int, str]:
    return (STREAM_ORDER.index(stream) if stream in STREAM_ORDER else len(STREAM_ORDER), stream)


def lane_calls(lane: Lane) -> Mapping[str, TimelineCall]:
    """The collectives of a lane by the name of their spans; messages have one lane a direction."""
    axis = lane.stream.partition(" ")[0]
    return {call.name: call for call in lane.rank.calls if call.axis == axis}


def call_text(call: TimelineCall) -> str:
    """What one call of a collective carries and how."""
    return (
        f"{format_decimal_bytes(call.num_bytes)} over {call.group_size:,} ranks, {call.algorithm} {call.protocol}, "
        f"limited by {call.bottleneck} ({call.basis})"
    )


def span_kinds(timeline: StepTimeline) -> tuple[tuple[str, str], ...]:
    """What is drawn, in the palette's order, with its colour: the key to the picture."""
    drawn = {span.category for rank in timeline.ranks for span in rank.spans}
    return tuple((kind_text(kind), colour) for kind, colour in SPAN_COLOURS.items() if kind in drawn)


def kind_text(category: SpanCategory) -> str:
    """A category as it is spoken: ``all-gather``."""
    return category.replace("_", "-")


def span_colour(category: SpanCategory) -> str:
    """The colour of a span."""
    return SPAN_COLOURS.get(category, OTHER_COLOUR)


def rank_title(rank: TimelineRank, *, source: TimelineSource = "simulated") -> str:
    """How a drawn rank is called."""
    return f"stage {rank.stage}, rank {rank.rank} ({source})"
