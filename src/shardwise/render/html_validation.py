"""Accuracy reports as one HTML file that works offline: the scatter plot and the tables, no scripts."""

from collections.abc import Iterator

from shardwise.render.html_page import element, figure, page_html
from shardwise.render.svg_scatter import ScatterPoint, scatter_svg
from shardwise.render.terminal import TextStyle
from shardwise.render.text_run_costs import run_costs_text
from shardwise.render.text_time_validation import time_validation_text
from shardwise.render.text_validation import signed_percent, validation_text
from shardwise.units import format_count, format_gib, format_seconds
from shardwise.validate.accuracy import AccuracyReport
from shardwise.validate.run_costs import RunCostReport
from shardwise.validate.time_accuracy import TimeAccuracyReport

PAGE_WIDTH = TextStyle(width=110)


def _page(title: str, picture: str, report: str) -> str:
    return page_html(title, (element("h1", title), figure(picture), element("pre", report)))


def time_validation_html(report: TimeAccuracyReport) -> str:
    """The page of step times."""
    title = "Step time, predicted against measured"
    picture = scatter_svg(tuple(time_points(report)), title=title, unit="seconds a step")
    text = time_validation_text(report, has_unused=True, style=PAGE_WIDTH)
    return _page(title, picture, text)


def time_points(report: TimeAccuracyReport) -> Iterator[ScatterPoint]:
    """One point a predicted run; runs with gaps are hollow."""
    for row in report.rows:
        if row.predicted_s is None or row.signed_error_fraction is None:
            continue
        figures = f"{format_seconds(row.run.measured_s)} measured, {format_seconds(row.predicted_s)} predicted"
        yield ScatterPoint(
            family=row.run.family,
            measured_ratio=row.run.measured_s,
            predicted_ratio=row.predicted_s,
            label=f"{row.run.id}: {figures}, {signed_percent(row.signed_error_fraction)}",
            is_hollow=not row.run.is_faithful,
        )


def cost_validation_html(report: RunCostReport) -> str:
    """The page of whole runs: the bills in GPU-hours as a picture, every figure in the table."""
    title = "Costs of whole runs, predicted against printed"
    picture = scatter_svg(tuple(run_cost_points(report)), title=title, unit="GPU-hours", hollow_note="outside its band")
    text = run_costs_text(report, has_unused=True, style=PAGE_WIDTH)
    return _page(title, picture, text)


def run_cost_points(report: RunCostReport) -> Iterator[ScatterPoint]:
    """One point a bill in GPU-hours; those outside their band are hollow."""
    for row in report.rows:
        if row.quantity != "GPU-hours":
            continue
        figures = f"{format_count(row.published_amount)} h printed, {format_count(row.predicted_amount)} h predicted"
        yield ScatterPoint(
            family=row.basis.partition(",")[0],
            measured_ratio=row.published_amount,
            predicted_ratio=row.predicted_amount,
            label=f"{row.id} {row.model}: {figures}, {signed_percent(row.signed_error_fraction)}",
            is_hollow=not row.is_in_band,
        )


def memory_validation_html(report: AccuracyReport) -> str:
    """The page of peak memory."""
    title = "Peak memory, predicted against measured"
    picture = scatter_svg(tuple(memory_points(report)), title=title, unit="bytes")
    text = validation_text(report, has_unused=True, style=PAGE_WIDTH)
    return _page(title, picture, text)


def memory_points(report: AccuracyReport) -> Iterator[ScatterPoint]:
    """One point a predicted reading, measured at the lower edge of what the printed figure can mean."""
    for row in report.rows:
        measured_bytes = row.run.measured_low_bytes
        if not row.predicted_bytes or not measured_bytes or row.signed_error_fraction is None:
            continue
        figures = f"{format_gib(measured_bytes)} {row.run.scope}, {format_gib(row.predicted_bytes)} predicted"
        yield ScatterPoint(
            family=row.run.family,
            measured_ratio=measured_bytes,
            predicted_ratio=row.predicted_bytes,
            label=f"{row.run.id}: {figures}, {signed_percent(row.signed_error_fraction)}",
        )
