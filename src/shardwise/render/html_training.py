"""A finished run as one HTML file that works offline: how it learned, how fast, in how much memory, and what it was."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from shardwise.ledger import PHASES
from shardwise.plan import Plan
from shardwise.prediction import Prediction
from shardwise.reconcile.measured import totals_of_measurement
from shardwise.reconcile.totals import memory_parts
from shardwise.reconcile.utilisation import Utilisation
from shardwise.render.html_page import element, figure, page_html
from shardwise.render.names import cluster_text, layout_text, model_text
from shardwise.render.svg_memory import COMPONENT_COLOURS
from shardwise.render.svg_phases import phases_svg
from shardwise.render.svg_reconciliation import pair_svg
from shardwise.render.svg_steps import Curve, Guide, curves_svg
from shardwise.render.terminal import TextStyle
from shardwise.render.text_training import training_text
from shardwise.units import format_bytes, format_gib

__all__ = ["FinishedRun", "training_html"]

PAGE_WIDTH = TextStyle(width=110)
TRAINED, VALIDATED, SPEED, OTHER = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
ABSENT = "not measured"
STYLE = """\
figure { margin: 0; }
.facts, .pictures { display: grid; gap: 1rem 2rem; }
.facts { grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); margin: 1.5rem 0; }
.facts div { border-top: 3px solid #0072b2; padding-top: .5rem; }
.facts b { display: block; font-size: 1.5rem; font-weight: 600; }
.facts span, .note { color: #555; }
.pictures { grid-template-columns: repeat(auto-fit, minmax(min(32rem, 100%), 1fr)); }
.options { columns: 22rem auto; column-gap: 2rem; font-size: .9rem; }
.options h3 { font-size: 1rem; margin: 0 0 .3rem; break-after: avoid; }
table { border-collapse: collapse; margin-bottom: 1.2rem; }
td { vertical-align: top; padding: .1rem 1.2rem .1rem 0; overflow-wrap: anywhere; }
td:first-child { color: #555; white-space: nowrap; }
"""
PHASES_NOTE = (
    "The most that one rank holds inside each phase of a step: the fullest stage as predicted, rank 0 as measured."
)
COMPONENTS_NOTE = "What makes up the peak, by the components that both sides state."
NO_MEMORY = "<p class='note'>No step of this run was looked into for its memory.</p>"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """Everything that the page shows."""

    plan: Plan
    prediction: Prediction
    measured: Mapping[str, Any]
    """The contents of ``measurement.json``."""
    used: tuple[Utilisation, ...]
    steps: Sequence[Mapping[str, Any]]
    """The lines of ``metrics.jsonl`` that led to the end."""
    recipe: Mapping[str, Any]
    """The contents of ``recipe.json``."""
    folder: Path


def training_html(run: FinishedRun) -> str:
    """The whole page."""
    report = training_text(
        plan=run.plan,
        prediction=run.prediction,
        measured=run.measured,
        used=run.used,
        folder=run.folder,
        style=PAGE_WIDTH,
    )
    title = f"{model_text(run.plan.model)}: {len(run.steps):,} steps"
    body = (
        element("h1", title),
        element("p", f"{layout_text(run.plan.layout)}, planned for {cluster_text(run.plan.cluster)}"),
        _group("facts", _facts(run)),
        element("h2", "How it learned, and how fast"),
        _group("pictures", (figure(picture) for picture in _curves(run) if picture)),
        element("h2", "Memory over the step"),
        *_memory(run),
        element("h2", "Predicted beside measured"),
        element("pre", report),
        element("h2", "What the run was"),
        _group("options", _options(run.recipe)),
    )
    return page_html(title, body, style=STYLE)


def _group(name: str, elements: Iterable[str]) -> str:
    return "\n".join((f'<div class="{name}">', *elements, "</div>"))


def _facts(run: FinishedRun) -> Iterator[str]:
    """The few numbers that a reader looks for first."""
    measured, predicted = run.measured, run.prediction
    loss, validation = measured.get("loss") or {}, measured.get("validation") or {}
    yield _fact("loss", _number(loss.get("last"), ".4f"), f"from {_number(loss.get('first'), '.4f')} in the first step")
    if validation.get("num_validations"):
        best = _number(validation.get("best_loss"), ".4f")
        said = f"the best of {validation['num_validations']}, after step {validation.get('best_step')}"
        yield _fact("validation loss", best, said)
    rate = (measured.get("throughput") or {}).get("tokens_per_s_per_gpu")
    said = f"{predicted.throughput.tokens_per_s_per_gpu:,.0f} predicted"
    yield _fact("tokens/s per GPU", _number(rate, ",.0f"), said)
    peak = (measured.get("memory") or {}).get("peak_allocated_bytes")
    said = f"{format_bytes(predicted.memory.worst.peak_allocated_bytes)} predicted"
    yield _fact("peak of allocated memory", format_bytes(peak) if peak else ABSENT, said)


def _fact(name: str, amount: str, said: str) -> str:
    return f"<div>{escape(name)}<b>{escape(amount)}</b><span>{escape(said)}</span></div>"


def _number(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, int | float) else ABSENT


def _curves(run: FinishedRun) -> Iterator[str]:
    losses = (
        Curve(name="training loss", colour=TRAINED, points=_points(run, "loss")),
        Curve(name="validation loss", colour=VALIDATED, points=_points(run, "validation_loss"), has_marks=True),
    )
    yield curves_svg(losses, title="Loss per token", amount="{:.4g}".format)
    yield curves_svg(
        [Curve(name="measured", colour=SPEED, points=_points(run, "tokens_per_s_per_gpu"))],
        title="Tokens per second and GPU",
        amount="{:,.0f}".format,
        guide=Guide(name="predicted", level=run.prediction.throughput.tokens_per_s_per_gpu),
        starts_at_zero=True,
    )
    yield curves_svg(
        [Curve(name="fullest expert over the mean", colour=SPEED, points=_fullest_experts(run))],
        title="Load of the fullest expert over the mean, in the layer where it is most",
        amount="{:.3g}".format,
        guide=Guide(name="even", level=1.0),
    )
    aux = [Curve(name="auxiliary loss", colour=OTHER, points=_points(run, "router_aux_loss"))]
    yield curves_svg(aux, title="Auxiliary loss of routers, without its coefficient", amount="{:.4g}".format)
    rate = [Curve(name="learning rate", colour=OTHER, points=_points(run, "learning_rate"))]
    yield curves_svg(rate, title="Learning rate", amount="{:.2g}".format, starts_at_zero=True)
    norm = [Curve(name="gradient norm", colour=TRAINED, points=_points(run, "gradient_norm"))]
    yield curves_svg(norm, title="Norm of the gradient, before clipping", amount="{:.3g}".format, starts_at_zero=True)


def _points(run: FinishedRun, field: str) -> tuple[tuple[int, float], ...]:
    found = ((step["step"], step.get(field)) for step in run.steps)
    return tuple((step, float(value)) for step, value in found if isinstance(value, int | float))


def _fullest_experts(run: FinishedRun) -> tuple[tuple[int, float], ...]:
    found = ((step["step"], step.get("expert_load_ratios")) for step in run.steps)
    return tuple((step, max(ratios.values())) for step, ratios in found if ratios)


def _memory(run: FinishedRun) -> Iterator[str]:
    memory = run.measured.get("memory") or {}
    worst, phases = run.prediction.memory.worst, memory.get("phases_bytes") or {}
    rows = [(mark.phase, mark.allocated_bytes, phases[mark.phase]) for mark in worst.phases if mark.phase in phases]
    if not rows:
        yield NO_MEMORY
    else:
        rows.sort(key=lambda row: PHASES.index(row[0]))
        yield f"<p class='note'>{PHASES_NOTE}</p>\n{figure(phases_svg(rows))}"
    both = list(memory_parts(run.prediction, totals_of_measurement(run.measured)))
    if both:
        colours = {str(part): colour for part, colour in COMPONENT_COLOURS.items()}
        picture = pair_svg(both, colours=colours, amount=format_gib)
        yield f"<p class='note'>{COMPONENTS_NOTE}</p>\n{figure(picture)}"


def _options(recipe: Mapping[str, Any]) -> Iterator[str]:
    """The recipe: a table for every section, with a row for every field."""
    for section, fields in recipe.items():
        if not isinstance(fields, Mapping) or not fields:
            continue
        yield f"<h3>{escape(section)}</h3>\n<table>"
        yield from (
            f"<tr><td>{escape(name)}</td><td>{escape(_said(value))}</td></tr>" for name, value in _fields(fields)
        )
        yield "</table>"


def _fields(fields: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The fields of a section, those of a part of it behind the part's name; a model's whole config stays out."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            if name not in WHOLE:
                yield from ((f"{name}.{inner}", said) for inner, said in value.items())
        elif value is not None and name != "schema":
            yield name, value


WHOLE = ("model", "cluster")
"""Parts of a plan that the head of the page names."""


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
