"""A predicted step as a few lines: what is drawn, and how busy each stream of the drawn ranks is."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from rich.text import Text

from shardwise.plan import Plan
from shardwise.predict.timeline import StepTimeline
from shardwise.prediction import ExposedCommunication, Prediction
from shardwise.render.answer_words import memory_words
from shardwise.render.next_lines import NOTHING_FOLLOWS, Following
from shardwise.render.question import plan_lines
from shardwise.render.screen_lines import screen_width
from shardwise.render.terminal import PLAIN, TextStyle, page_text
from shardwise.render.timeline_lanes import rank_title, timeline_lanes
from shardwise.units import format_seconds

MOST_SHARES = 5
"""Axes or units in a line; JSON has them all."""


def timeline_text(
    *,
    plan: Plan,
    timeline: StepTimeline,
    prediction: Prediction | None = None,
    exposed: ExposedCommunication | None = None,
    following: Following = NOTHING_FOLLOWS,
    assumed: AbstractSet[str] = frozenset(),
    style: TextStyle = PLAIN,
) -> str:
    """The summary that the command prints beside the files it writes, with the commands to type next where they are
    given, and the verdict of a prediction that may not fit with its first remedy."""
    lines = [
        f"Simulated step of {format_seconds(timeline.step_s)}; {len(timeline.ranks):,} of "
        f"{_counted(timeline.num_ranks, 'rank')} drawn with {_counted(timeline.num_spans, 'span')}"
    ]
    if prediction is not None and prediction.fit != "fits":
        lines.append(f"Its memory: {memory_words(prediction)}")
    lines += [part.plain for part in following.remedy_parts]
    if exposed is not None:
        lines += exposed_lines(exposed)
    asked = plan_lines(plan, screen_width(style), assumed=assumed)
    title, streams = "", list[str]()
    for lane in timeline_lanes(timeline):
        if rank_title(lane.rank) != title:
            title = rank_title(lane.rank)
            streams += ["", title]
        busy = format_seconds(sum(span.duration_s for span in lane.spans))
        streams.append(f"  {lane.stream:<13} {busy:>10} busy in {_counted(len(lane.spans), 'span')}")
    streams += ["", *(f"note: {note}" for note in timeline.notes)]
    return page_text(
        [*map(Text, lines), Text(), *asked, *map(Text, streams), *following.lines(style)],
        style=style,
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def exposed_lines(exposed: ExposedCommunication) -> Iterator[str]:
    """What the step takes longer than with free communication, by axis and by unit."""
    if not exposed.axes:
        return
    yield f"{format_seconds(exposed.total_s)} of the step would go if communication were free"
    for what, shares, shared_s in (
        ("by axis", exposed.axes, exposed.shared_by_axes_s),
        ("by unit", exposed.units, exposed.shared_by_units_s),
    ):
        largest = sorted(shares, key=lambda share: -share.exposed_s)[:MOST_SHARES]
        parts = [f"{share.name} {format_seconds(share.exposed_s)}" for share in largest]
        rest = f", shared {format_seconds(shared_s)}" if len(shares) > 1 else ""
        yield f"  {what}, if it alone were free: {', '.join(parts)}{rest}"
