"""A reconciliation as one HTML file that works offline: bars side by side, the two timelines, the table."""

from html import escape

from shardwise.predict.timeline import StepTimeline
from shardwise.reconcile.totals import Reconciliation
from shardwise.render.names import cluster_text, layout_text, model_text
from shardwise.render.reconciliation import reconciliation_text
from shardwise.render.svg_memory import COMPONENT_COLOURS
from shardwise.render.svg_reconciliation import pair_svg
from shardwise.render.svg_timeline import timeline_svg
from shardwise.render.terminal import TextStyle
from shardwise.render.timeline_lanes import PART_COLOURS, timeline_end_s
from shardwise.units import format_gib, format_seconds

PAGE_WIDTH = TextStyle(width=120)
PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Predicted beside measured</title>
<style>
body {{ font-family: system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
svg {{ max-width: 100%; height: auto; }}
figure {{ margin: 1rem 0; }}
pre {{ overflow-x: auto; background: #f6f6f6; padding: 1rem; }}
</style>
</head>
<body>
<h1>Predicted beside measured</h1>
<p>{title}</p>
{sections}
<h2>Quantity by quantity</h2>
<pre>{report}</pre>
</body>
</html>
"""
SECTION = """<h2>{heading}</h2>
<p>{words}</p>
<figure>
{picture}</figure>"""
TIME_WORDS = "One step by the ledger's components. The measured one was profiled, which makes it a little longer."
MEMORY_WORDS = "The fullest rank by the ledger's components, those that both sides state."
TIMELINE_WORDS = "The same ranks on the same scale of time: first as predicted, below as measured."


def reconciliation_html(found: Reconciliation, *, predicted: StepTimeline, measured: StepTimeline | None) -> str:
    """The whole page."""
    plan = found.plan
    return PAGE.format(
        title=escape(f"{model_text(plan.model)}, {layout_text(plan.layout)}, on {cluster_text(plan.cluster)}"),
        sections="\n".join(_sections(found, predicted, measured)),
        report=escape(reconciliation_text(found, style=PAGE_WIDTH)),
    )


def _sections(found: Reconciliation, predicted: StepTimeline, measured: StepTimeline | None) -> list[str]:
    sections = []
    if times := found.group("time"):
        picture = pair_svg(
            times, colours={str(part): colour for part, colour in PART_COLOURS.items()}, amount=format_seconds
        )
        sections.append(SECTION.format(heading="Where the step goes", words=TIME_WORDS, picture=picture))
    if memory := found.group("memory"):
        picture = pair_svg(
            memory, colours={str(part): colour for part, colour in COMPONENT_COLOURS.items()}, amount=format_gib
        )
        sections.append(SECTION.format(heading="Where the memory goes", words=MEMORY_WORDS, picture=picture))
    end_s = max(timeline_end_s(predicted), timeline_end_s(measured) if measured else 0.0)
    pictures = timeline_svg(predicted, title="predicted", end_s=end_s)
    if measured is not None:
        pictures += timeline_svg(measured, title="measured", end_s=end_s)
    sections.append(SECTION.format(heading="The two timelines", words=TIMELINE_WORDS, picture=pictures))
    return sections
