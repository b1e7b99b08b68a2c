"""A prediction as one HTML file that works offline: the memory picture and the text report, no scripts."""

from shardwise.plan import Plan
from shardwise.prediction import Prediction
from shardwise.render.html_page import element, figure, page_html
from shardwise.render.names import cluster_text, layout_text, model_text
from shardwise.render.svg_memory import memory_svg
from shardwise.render.text_prediction import prediction_text


def prediction_html(*, plan: Plan, prediction: Prediction) -> str:
    """The whole page."""
    title = f"{model_text(plan.model)} on {cluster_text(plan.cluster)}"
    body = (
        element("h1", title),
        element("p", layout_text(plan.layout)),
        figure(memory_svg(prediction.memory, title="Device memory per pipeline stage")),
        element("pre", prediction_text(plan=plan, prediction=prediction)),
    )
    return page_html(title, body)
