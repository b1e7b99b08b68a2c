"""A predicted step as one HTML file that works offline: lanes on a canvas that zooms and moves, with its own few lines
of script and nothing loaded from anywhere."""

import json
import re
from html import escape

from shardwise.plan import Plan
from shardwise.predict.timeline import StepTimeline
from shardwise.render.names import cluster_text, layout_text, model_text
from shardwise.render.timeline_lanes import SPAN_COLOURS, rank_title, span_colour, timeline_lanes
from shardwise.units import format_seconds, microseconds

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title>
<style>
body { font-family: system-ui, sans-serif; margin: 1.5rem; color: #222; background: #fff; }
canvas { width: 100%; display: block; cursor: grab; touch-action: none; }
#tip { min-height: 1.4em; font-variant-numeric: tabular-nums; }
ul { padding-left: 1.2rem; color: #555; }
.key { display: inline-block; margin-right: 1rem; white-space: nowrap; }
.key i { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.35em; }
</style>
</head>
<body>
<h1>@TITLE@</h1>
<p>@LAYOUT@</p>
<p>Simulated step of @STEP@, @DRAWN@. Scroll to zoom, drag to move, double-click for the whole step.</p>
<p>@LEGEND@</p>
<p id="tip" aria-live="polite">&nbsp;</p>
<canvas id="lanes"></canvas>
<ul>@NOTES@</ul>
<script>
const data = @DATA@;
const canvas = document.getElementById("lanes"), tip = document.getElementById("tip");
const labels = 150, lane = 20, head = 22, pen = canvas.getContext("2d");
let from = 0, to = data.end, grabbed = null;
let rows = [], height = 0;
for (const one of data.lanes) {
  if (one.first) { height += head; rows.push({ y: height - 7, title: one.rank }); }
  rows.push({ y: height, lane: one });
  height += lane;
}
function draw() {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = (height + 24) + "px";
  canvas.width = width * scale; canvas.height = (height + 24) * scale;
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height + 24);
  pen.font = "12px system-ui, sans-serif";
  const perUs = (width - labels) / (to - from);
  for (const row of rows) {
    pen.fillStyle = "#222";
    if (row.title) { pen.fillText(row.title, 0, row.y); continue; }
    pen.fillText(row.lane.stream, 8, row.y + 13);
    for (const [start, duration, , colour] of row.lane.spans) {
      if (start > to || start + duration < from) continue;
      const x = labels + Math.max(0, (start - from) * perUs);
      const end = labels + Math.min(width - labels, (start + duration - from) * perUs);
      pen.fillStyle = colour;
      pen.fillRect(x, row.y + 1, Math.max(0.5, end - x - (end - x > 4 ? 0.5 : 0)), lane - 4);
    }
  }
  pen.fillStyle = "#555";
  pen.fillText((from / 1000).toFixed(3) + " ms", labels, height + 16);
  const right = (to / 1000).toFixed(3) + " ms";
  pen.fillText(right, width - pen.measureText(right).width, height + 16);
}
function timeAt(x) { return from + (x - labels) / (canvas.clientWidth - labels) * (to - from); }
function show(start, end) {
  const span = Math.min(data.end, Math.max(data.end / 1e5, end - start));
  from = Math.min(Math.max(0, start), data.end - span);
  to = from + span;
  draw();
}
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  const at = timeAt(Math.max(labels, event.offsetX)), factor = Math.exp(event.deltaY * 0.002);
  show(at - (at - from) * factor, at + (to - at) * factor);
}, { passive: false });
canvas.addEventListener("pointerdown", (event) => {
  grabbed = timeAt(event.offsetX);
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointerup", () => { grabbed = null; });
canvas.addEventListener("pointermove", (event) => {
  const at = timeAt(event.offsetX);
  if (grabbed !== null) { show(from + grabbed - at, to + grabbed - at); return; }
  const row = rows.find((one) => one.lane && event.offsetY >= one.y && event.offsetY < one.y + lane);
  const hit = row && row.lane.spans.find(([start, duration]) => at >= start && at <= start + duration);
  tip.textContent = hit ? hit[2] + ": " + (hit[1] / 1000).toFixed(3) + " ms from " + (hit[0] / 1000).toFixed(3) + " ms"
    : "\\u00a0";
});
canvas.addEventListener("dblclick", () => show(0, data.end));
window.addEventListener("resize", draw);
draw();
</script>
</body>
</html>
"""


def timeline_html(*, plan: Plan, timeline: StepTimeline) -> str:
    """The whole page."""
    title = f"{model_text(plan.model)} on {cluster_text(plan.cluster)}"
    legend = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(category)}</span>'
        for category, colour in SPAN_COLOURS.items()
    )
    texts = {
        "TITLE": escape(title),
        "LAYOUT": escape(layout_text(plan.layout)),
        "STEP": escape(format_seconds(timeline.step_s)),
        "DRAWN": f"{len(timeline.ranks)} of {timeline.num_ranks:,} ranks drawn, one of a stage",
        "LEGEND": legend,
        "NOTES": "".join(f"<li>{escape(note)}</li>" for note in timeline.notes),
        "DATA": _data(timeline),
    }
    return re.sub("@([A-Z]+)@", lambda found: texts[found[1]], PAGE)


def _data(timeline: StepTimeline) -> str:
    """The lanes as JSON that cannot end its script element."""
    seen: set[int] = set()
    lanes = []
    for lane in timeline_lanes(timeline):
        is_first = lane.rank.stage not in seen
        seen.add(lane.rank.stage)
        lanes.append(
            {
                "rank": rank_title(lane.rank),
                "stream": lane.stream,
                "first": is_first,
                "spans": [
                    [
                        microseconds(span.start_s),
                        microseconds(span.duration_s),
                        span.name if span.micro_batch is None else f"{span.name}, micro-batch {span.micro_batch}",
                        span_colour(span.category),
                    ]
                    for span in lane.spans
                ],
            }
        )
    end_s = max([timeline.step_s, *(span.end_s for rank in timeline.ranks for span in rank.spans)])
    text = json.dumps({"end": microseconds(end_s), "lanes": lanes}, allow_nan=False, separators=(",", ":"))
    return text.replace("</", "<\\/")
