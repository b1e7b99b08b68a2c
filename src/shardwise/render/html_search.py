"""A search or a sweep as one HTML file that works offline: the front as a picture and the report, no scripts."""

from shardwise.render.front_picture import FrontPicture, search_front, sweep_front
from shardwise.render.html_page import element, figure, page_html
from shardwise.render.names import cluster_text, model_text
from shardwise.render.svg_front import front_svg
from shardwise.render.text_search import search_text
from shardwise.render.text_sweep import sweep_text
from shardwise.search import SearchResult, Sensitivity, SweepResult

ADAPTS = """\
:root { color-scheme: light dark; }
body { color: inherit; }
pre { background: none; border: 1px solid #8888; }
"""
"""The picture of a front is dark on light or light on dark, as its reader chose, and so is the page around it."""


def search_html(result: SearchResult, *, sensitivity: Sensitivity | None = None) -> str:
    """The page of one cluster."""
    shown = result.plans[0].plan if result.plans else None
    if shown is None:
        rest = result.closest or result.missed
        shown = rest.plan if rest is not None else None
    title = "Layouts" if shown is None else f"{model_text(shown.model)} on {cluster_text(shown.cluster)}"
    summary = result.plans[0].why if result.plans else "No plan."
    report = search_text(result, sensitivity=sensitivity, has_picture=False)
    return _page(title, summary, search_front(result), report)


def sweep_html(result: SweepResult) -> str:
    """The page of many clusters."""
    title = f"{model_text(result.rows[0].question.model)} on {len(result.rows)} clusters"
    return _page(title, result.why, sweep_front(result), sweep_text(result, has_picture=False))


def _page(title: str, summary: str, picture: FrontPicture | None, report: str) -> str:
    drawn = (figure(front_svg(picture)),) if picture is not None else ()
    body = (element("h1", title), element("p", summary), *drawn, element("pre", report))
    return page_html(title, body, style=ADAPTS)
