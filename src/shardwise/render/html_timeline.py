"""A predicted step as one HTML file that works offline: lanes on a canvas that zooms and moves, with its own few lines
of script and nothing loaded from anywhere."""

import json
import re
from collections.abc import Iterator
from html import escape

from shardwise.ledger import TimeComponent
from shardwise.plan import Plan
from shardwise.predict.tasks import COMPUTE
from shardwise.predict.timeline import StepTimeline, TimelineCall, TimelineRank
from shardwise.predict.timeline_split import split_rank
from shardwise.render.names import cluster_text, layout_text, model_text, settings_text
from shardwise.render.question import question_words
from shardwise.render.timeline_lanes import (
    PART_COLOURS,
    call_text,
    lane_calls,
    rank_title,
    span_colour,
    span_kinds,
    timeline_end_s,
    timeline_lanes,
)
from shardwise.render.timeline_page import PAGE
from shardwise.units import Seconds, format_seconds, microseconds

COMPUTING: tuple[TimeComponent, ...] = ("forward", "backward", "recompute", "optimizer")
WAITS = '<span class="key"><i style="background:var(--wait)"></i>waits for communication</span>'


def timeline_html(*, plan: Plan, timeline: StepTimeline) -> str:
    """The whole page."""
    title = f"{model_text(plan.model)} on {cluster_text(plan.cluster)}"
    legend = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(kind)}</span>'
        for kind, colour in span_kinds(timeline)
    )
    texts = {
        "TITLE": escape(title),
        "LAYOUT": escape(layout_text(plan.layout)),
        "BATCH": escape(f"{question_words(plan)}; {settings_text(plan)}"),
        "STEP": escape(format_seconds(timeline.step_s)),
        "DRAWN": f"{len(timeline.ranks)} of {timeline.num_ranks:,} ranks drawn, one of a stage",
        "LEGEND": legend + WAITS,
        "NOTES": "".join(f"<li>{escape(note)}</li>" for note in timeline.notes),
        "DATA": _data(timeline),
    }
    return re.sub("@([A-Z]+)@", lambda found: texts[found[1]], PAGE)


class _Table:
    """Texts that spans repeat, written once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def place(self, text: str) -> int:
        """Where a text stands."""
        return self._places.setdefault(text, len(self._places))

    @property
    def texts(self) -> list[str]:
        return list(self._places)


def _data(timeline: StepTimeline) -> str:
    """The lanes as JSON that cannot end its script element."""
    names, colours, calls = _Table(), _Table(), _Table()
    lanes = list(_lanes(timeline, names, colours, calls))
    end_s = timeline_end_s(timeline)
    parts = [
        [entry.component.replace("_", " "), microseconds(entry.duration_s), PART_COLOURS[entry.component]]
        for entry in timeline.components
        if entry.duration_s > 0
    ]
    page = {
        "end": microseconds(end_s),
        "parts": parts,
        "names": names.texts,
        "colours": colours.texts,
        "calls": calls.texts,
        "lanes": lanes,
    }
    text = json.dumps(page, allow_nan=False, separators=(",", ":"))
    return text.replace("</", "<\\/")


def _lanes(timeline: StepTimeline, names: _Table, colours: _Table, calls: _Table) -> Iterator[dict[str, object]]:
    waits = {rank.stage: split_rank(rank.spans, step_s=timeline.step_s).exposed for rank in timeline.ranks}
    seen: set[int] = set()
    for lane in timeline_lanes(timeline):
        is_first = lane.rank.stage not in seen
        seen.add(lane.rank.stage)
        own = lane_calls(lane)
        exposed = waits[lane.rank.stage] if lane.stream == COMPUTE else ()
        yield {
            "rank": rank_title(lane.rank),
            "stream": lane.stream,
            "first": is_first,
            "split": [microseconds(part_s) for part_s in _split(lane.rank)],
            "exposed": [[microseconds(start_s), microseconds(end_s - start_s)] for start_s, end_s in exposed],
            "spans": [
                [
                    microseconds(span.start_s),
                    microseconds(span.duration_s),
                    names.place(span.name),
                    colours.place(span_colour(span.category)),
                    span.micro_batch,
                    _call_place(own.get(span.name), calls),
                    microseconds(span.exposed_s),
                ]
                for span in lane.spans
            ],
        }


def _split(rank: TimelineRank) -> tuple[Seconds, Seconds, Seconds]:
    """A rank's step: what it computes, waits for communication and is idle, as the prediction counts it."""
    parts = {entry.component: entry.duration_s for entry in rank.components}
    computing_s = sum(parts.get(name, 0.0) for name in COMPUTING)
    return computing_s, parts.get("exposed_communication", 0.0), parts.get("pipeline_bubble", 0.0)


def _call_place(call: TimelineCall | None, calls: _Table) -> int | None:
    return None if call is None else calls.place(call_text(call))
