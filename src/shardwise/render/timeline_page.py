"""The page of a drawn step: its style and its few lines of script, with places for what is drawn."""

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>@TITLE@</title>
<style>
:root { --ink: #222; --soft: #666; --paper: #fff; --track: #f1f1f1; --rule: #ddd; --wait: #f3b3a9; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --soft: #a8a8a8; --paper: #16181d; --track: #23262d;
  --rule: #3a3e47; --wait: #7d3a32; } }
body { font-family: system-ui, sans-serif; margin: 1.2rem 1.5rem; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.3rem; margin: 0 0 .3rem; }
p { margin: .3rem 0; }
.soft, ul { color: var(--soft); }
ul { padding-left: 1.2rem; }
#parts { display: flex; height: 1.4rem; margin: .6rem 0 .3rem; border-radius: 3px; overflow: hidden; }
.key { display: inline-block; margin-right: 1.1rem; white-space: nowrap; font-variant-numeric: tabular-nums; }
.key i { display: inline-block; width: .8em; height: .8em; margin-right: .35em; border-radius: 2px; }
.bar { display: flex; flex-wrap: wrap; align-items: baseline; margin-top: 1rem; }
.bar span { flex: 1; }
button { font: inherit; color: inherit; background: var(--track); border: 1px solid var(--rule); border-radius: 4px;
  margin-left: .3rem; cursor: pointer; }
canvas { width: 100%; display: block; cursor: grab; touch-action: none; }
#tip { position: fixed; pointer-events: none; max-width: 26rem; padding: .4rem .6rem; border-radius: 4px;
  background: var(--paper); border: 1px solid var(--soft); font-size: .85rem; white-space: pre-line; }
</style>
</head>
<body>
<h1>@TITLE@</h1>
<p>@LAYOUT@</p>
<p class="soft">@BATCH@</p>
<p>Simulated step of <b>@STEP@</b>, @DRAWN@. The slowest rank:</p>
<div id="parts"></div>
<p id="shares"></p>
<div class="bar"><span>@LEGEND@</span>
<button id="in">zoom in</button><button id="out">zoom out</button><button id="all">whole step</button></div>
<canvas id="lanes" tabindex="0" aria-label="streams of the drawn ranks over the time of the step"></canvas>
<p class="soft">Scroll or + and - to zoom, drag or arrow keys to move, double-click for the whole step.</p>
<ul>@NOTES@<li>exposed communication is what the step takes longer than with free communication: the time in which
nothing is computed, and the slowdown of computation beside it</li></ul>
<div id="tip" hidden></div>
<script>
const data = @DATA@;
const canvas = document.getElementById("lanes"), tip = document.getElementById("tip");
const labels = 120, lane = 24, head = 30, axis = 22, pen = canvas.getContext("2d");
let from = 0, to = data.end, grabbed = null, rows = [], height = axis;
for (const one of data.lanes) {
  if (one.first) { height += head; rows.push({ y: height - 9, title: one.rank, split: one.split }); }
  rows.push({ y: height, lane: one });
  height += lane;
}
function time(us, digits = 4) {
  if (us === 0) return "0 s";
  const [value, unit] = us >= 1e6 ? [us / 1e6, "s"] : us >= 1e3 ? [us / 1e3, "ms"] : [us, "\\u00b5s"];
  return Number(value.toPrecision(digits)).toString() + " " + unit;
}
function share(us) { return (100 * us / data.end).toFixed(1) + " %"; }
for (const [name, us, colour] of data.parts) {
  const part = document.createElement("div");
  part.style.width = 100 * us / data.end + "%"; part.style.background = colour; part.title = name + " " + time(us);
  document.getElementById("parts").append(part);
  const key = document.createElement("span"), dot = document.createElement("i");
  key.className = "key"; dot.style.background = colour;
  key.append(dot, name + " " + time(us, 3) + ", " + share(us));
  document.getElementById("shares").append(key, " ");
}
function paint(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
function inkOn(colour) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return 0.3 * r + 0.6 * g + 0.1 * b > 130 ? "#222" : "#fff";
}
function tickStep(wanted) {
  const power = 10 ** Math.floor(Math.log10(wanted));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= wanted);
}
function bar(row, start, duration, perUs, width) {
  if (start > to || start + duration < from) return null;
  const x = labels + Math.max(0, (start - from) * perUs);
  const end = labels + Math.min(width - labels, (start + duration - from) * perUs);
  const wide = Math.max(1, end - x - (end - x > 4 ? 0.5 : 0));
  pen.fillRect(x, row.y + 2, wide, lane - 5);
  return [x, wide];
}
function draw() {
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = (height + 8) + "px";
  canvas.width = width * scale; canvas.height = (height + 8) * scale;
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  const perUs = (width - labels) / (to - from), step = tickStep(90 / perUs);
  const ink = paint("--ink"), soft = paint("--soft"), track = paint("--track"), wait = paint("--wait");
  for (const row of rows) {
    if (!row.lane) continue;
    pen.fillStyle = track;
    pen.fillRect(labels, row.y + 2, width - labels, lane - 5);
  }
  pen.font = "11px system-ui, sans-serif";
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
    const x = labels + (at - from) * perUs, words = time(at, 7);
    pen.fillStyle = paint("--rule"); pen.fillRect(x, axis - 6, 1, height - axis + 6);
    pen.fillStyle = soft;
    pen.fillText(words, Math.min(x, width - pen.measureText(words).width), axis - 10);
  }
  for (const row of rows) {
    pen.fillStyle = ink;
    if (row.title) {
      pen.font = "600 12px system-ui, sans-serif";
      pen.fillText(row.title, 0, row.y);
      const [computing, exposed, idle] = row.split, at = pen.measureText(row.title).width + 14;
      pen.font = "12px system-ui, sans-serif"; pen.fillStyle = soft;
      pen.fillText("computes " + share(computing) + ", waits for communication " + share(exposed)
        + ", idle " + share(idle), at, row.y);
      continue;
    }
    pen.font = "12px system-ui, sans-serif";
    pen.fillText(row.lane.stream, 8, row.y + 15);
    pen.fillStyle = wait;
    for (const [start, duration] of row.lane.exposed) bar(row, start, duration, perUs, width);
    pen.font = "11px system-ui, sans-serif";
    for (const [start, duration, name, colour] of row.lane.spans) {
      pen.fillStyle = data.colours[colour];
      const drawn = bar(row, start, duration, perUs, width);
      if (!drawn || drawn[1] < 24) continue;
      const words = data.names[name], room = drawn[1] - 8;
      const size = pen.measureText(words).width;
      const short = size <= room ? words : words.slice(0, Math.floor(words.length * room / size) - 1) + "\\u2026";
      if (short !== words && short.length < 10) continue;
      pen.fillStyle = inkOn(data.colours[colour]);
      pen.fillText(short, drawn[0] + 4, row.y + 15);
    }
  }
}
function timeAt(x) { return from + (x - labels) / (canvas.clientWidth - labels) * (to - from); }
function show(start, end) {
  const span = Math.min(data.end, Math.max(data.end / 1e5, end - start));
  from = Math.min(Math.max(0, start), data.end - span);
  to = from + span;
  draw();
}
function zoom(at, factor) { show(at - (at - from) * factor, at + (to - at) * factor); }
function hit(event) {
  const at = timeAt(event.offsetX), slack = (to - from) / canvas.clientWidth;
  const row = rows.find((one) => one.lane && event.offsetY >= one.y && event.offsetY < one.y + lane);
  const inside = ([start, duration]) => at >= start - slack && at <= start + duration + slack;
  const span = row && row.lane.spans.find(inside);
  if (!span) return row && row.lane.exposed.some(inside) ? "waits for communication" : "";
  const [start, duration, name, , micro, call, exposed] = span;
  return data.names[name] + (micro === null ? "" : ", micro-batch " + micro) + "\\n" + time(duration) + " from "
    + time(start) + (exposed ? ", " + time(exposed) + " of the step exposed" : "")
    + (call === null ? "" : "\\n" + data.calls[call]);
}
canvas.addEventListener("wheel", (event) => {
  event.preventDefault();
  zoom(timeAt(Math.max(labels, event.offsetX)), Math.exp(event.deltaY * 0.002));
}, { passive: false });
canvas.addEventListener("pointerdown", (event) => {
  grabbed = timeAt(event.offsetX);
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointerup", () => { grabbed = null; });
canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
canvas.addEventListener("pointermove", (event) => {
  const at = timeAt(event.offsetX);
  if (grabbed !== null) { show(from + grabbed - at, to + grabbed - at); return; }
  const words = hit(event);
  tip.hidden = !words;
  tip.textContent = words;
  tip.style.left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8) + "px";
  tip.style.top = Math.min(event.clientY + 16, window.innerHeight - tip.offsetHeight - 8) + "px";
});
canvas.addEventListener("keydown", (event) => {
  const move = (to - from) / 5, middle = (from + to) / 2;
  const deeds = { "+": () => zoom(middle, 0.7), "-": () => zoom(middle, 1.4), Home: () => show(0, data.end),
    ArrowLeft: () => show(from - move, to - move), ArrowRight: () => show(from + move, to + move) };
  if (deeds[event.key]) { deeds[event.key](); event.preventDefault(); }
});
canvas.addEventListener("dblclick", () => show(0, data.end));
document.getElementById("in").onclick = () => zoom((from + to) / 2, 0.5);
document.getElementById("out").onclick = () => zoom((from + to) / 2, 2);
document.getElementById("all").onclick = () => show(0, data.end);
window.addEventListener("resize", draw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
</script>
</body>
</html>
"""
