"""A reconciliation as one HTML file that works offline: bars side by side, the two timelines, the table."""

from collections.abc import Iterator

from shardwise.predict.timeline import StepTimeline
from shardwise.reconcile.totals import Reconciliation
from shardwise.render.html_page import element, figure, page_html
from shardwise.render.names import cluster_text, layout_text, model_text
from shardwise.render.reconciliation import reconciliation_text
from shardwise.render.svg_memory import COMPONENT_COLOURS
from shardwise.render.svg_reconciliation import pair_svg
from shardwise.render.svg_timeline import timeline_svg
from shardwise.render.terminal import TextStyle
from shardwise.render.timeline_lanes import PART_COLOURS, timeline_end_s
from shardwise.units import format_gib, format_seconds

PAGE_WIDTH = TextStyle(width=120)
TITLE = "Predicted beside measured"
TIME_WORDS = "One step by the ledger's components. The measured one was profiled, which makes it a little longer."
MEMORY_WORDS = "The fullest rank by the ledger's components, those that both sides state."
TIMELINE_WORDS = "The same ranks on the same scale of time: first as predicted, below as measured."


def reconciliation_html(found: Reconciliation, *, predicted: StepTimeline, measured: StepTimeline | None) -> str:
    """The whole page."""
    plan = found.plan
    body = (
        element("h1", TITLE),
        element("p", f"{model_text(plan.model)}, {layout_text(plan.layout)}, on {cluster_text(plan.cluster)}"),
        *_sections(found, predicted, measured),
        element("h2", "Quantity by quantity"),
        element("pre", reconciliation_text(found, style=PAGE_WIDTH)),
    )
    return page_html(TITLE, body)


def _sections(found: Reconciliation, predicted: StepTimeline, measured: StepTimeline | None) -> Iterator[str]:
    if times := found.group("time"):
        colours = {str(part): colour for part, colour in PART_COLOURS.items()}
        yield from _section("Where the step goes", TIME_WORDS, pair_svg(times, colours=colours, amount=format_seconds))
    if memory := found.group("memory"):
        colours = {str(part): colour for part, colour in COMPONENT_COLOURS.items()}
        yield from _section("Where the memory goes", MEMORY_WORDS, pair_svg(memory, colours=colours, amount=format_gib))
    end_s = max(timeline_end_s(predicted), timeline_end_s(measured) if measured else 0.0)
    pictures = timeline_svg(predicted, title="predicted", end_s=end_s)
    if measured is not None:
        pictures += timeline_svg(measured, title="measured", end_s=end_s)
    yield from _section("The two timelines", TIMELINE_WORDS, pictures)


def _section(heading: str, words: str, picture: str) -> tuple[str, str, str]:
    return element("h2", heading), element("p", words), figure(picture)
