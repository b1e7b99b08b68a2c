"""A prediction as one HTML file that works offline: the memory picture and the text report, no scripts."""

from html import escape

from shardwise.plan import Plan
from shardwise.prediction import Prediction
from shardwise.render.names import cluster_text, layout_text, model_text
from shardwise.render.svg_memory import memory_svg
from shardwise.render.text_prediction import prediction_text

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font-family: system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
svg {{ max-width: 100%; height: auto; }}
pre {{ overflow-x: auto; background: #f6f6f6; padding: 1rem; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{layout}</p>
<figure>
{picture}</figure>
<pre>{report}</pre>
</body>
</html>
"""


def prediction_html(*, plan: Plan, prediction: Prediction) -> str:
    """The whole page."""
    title = f"{model_text(plan.model)} on {cluster_text(plan.cluster)}"
    return PAGE.format(
        title=escape(title),
        layout=escape(layout_text(plan.layout)),
        picture=memory_svg(prediction.memory, title="Device memory per pipeline stage"),
        report=escape(prediction_text(plan=plan, prediction=prediction)),
    )
