"""The step-time accuracy report as text: errors, band and ranking per family, and every row when asked."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.render.text_validation import NOTHING, signed_percent, unused_table
from shardwise.units import format_percent, format_seconds
from shardwise.validate.time_accuracy import TimeAccuracyReport, TimedRowAccuracy, TimeSummary

GAP_MARK = "*"
"""After the name of a family whose rows did something that a plan cannot say."""


def time_validation_text(
    report: TimeAccuracyReport, *, has_rows: bool = False, has_unused: bool = False, style: TextStyle = PLAIN
) -> str:
    """Everything ``shardwise validate --quantity time`` prints."""
    return page_text(time_validation_parts(report, has_rows=has_rows, has_unused=has_unused), style=style)


def time_validation_parts(report: TimeAccuracyReport, *, has_rows: bool, has_unused: bool) -> Iterator[RenderableType]:
    """The parts of the page, in reading order."""
    if has_rows:
        yield timed_rows_table(report.rows)
        yield Text()
    yield step_time_table(report)
    if has_unused and report.unused:
        yield Text()
        yield unused_table(report.unused)
    yield Text()
    yield Text(
        f"{split_sentence(report)} Median over reported families of their median absolute error: "
        f"{format_percent(report.family_median_fraction)}, after one row of each was measured "
        f"{format_percent(report.family_calibrated_fraction)}."
    )
    yield Text(
        f"{len(report.rows)} published rates are repeated by a plan; {len(report.unused)} are not (--unused says why). "
        "Errors are predicted over measured step time minus one: negative is optimistic. 1 row: the median error once "
        "one other row of the family was measured, carried over as far as the plans are alike. tau: rank correlation "
        f"of time per token within sweeps of one source table, model and cluster. {GAP_MARK} marks runs that did "
        "something a plan cannot say, such as replaying CUDA graphs; they are no part of the totals."
    )


def split_sentence(report: TimeAccuracyReport) -> str:
    """Which families constants were fitted on, and which are evidence."""
    fitted = ", ".join(report.fitted_families) or "none"
    reported = ", ".join(report.reported_families) or "none"
    return (
        "Families above the first line fitted nothing: no band and no constant; below it are all of them together and "
        f"by engine. Fitted on: {fitted}. Reported: {reported}. Only the bands are fitted: they are the residuals of "
        "the fitted families."
    )


def step_time_table(report: TimeAccuracyReport) -> Table:
    """Errors of step time per family: those that fitted nothing, what they say together, and then the others."""
    table = plain_table(title="Step time, predicted against measured", padding=(0, 1, 0, 0))
    table.add_column("family")
    for heading in ("rows", "bias", "|median|", "|90%|", "|max|", "1 row", "in band", "tau"):
        table.add_column(heading, justify="right", no_wrap=True)
    blind = [summary for summary in report.families if summary.name in report.blind_families]
    for summary in blind:
        table.add_row(*_summary_cells(summary))
    table.add_section()
    if report.blind is not None:
        table.add_row(*_summary_cells(report.blind))
    for summary in report.blind_engines:
        table.add_row(*_summary_cells(replace(summary, name=f"  {summary.name}")))
    table.add_section()
    for summary in report.families:
        if summary not in blind:
            table.add_row(*_summary_cells(summary))
    table.add_section()
    for total in (report.reported, report.fitted, report.with_gaps):
        if total is not None:
            table.add_row(*_summary_cells(total))
    return table


def _summary_cells(summary: TimeSummary) -> tuple[str, ...]:
    calibrated, tau = summary.calibrated_median_fraction, summary.kendall_tau_ratio
    return (
        summary.name + (GAP_MARK if summary.has_gaps else ""),
        str(summary.num_rows),
        signed_percent(summary.median_signed_fraction),
        format_percent(summary.median_absolute_fraction),
        format_percent(summary.p90_absolute_fraction),
        format_percent(summary.max_absolute_fraction),
        NOTHING if calibrated is None else format_percent(calibrated),
        format_percent(summary.in_band_fraction),
        NOTHING if tau is None else f"{tau:.2f}",
    )


def timed_rows_table(rows: Iterable[TimedRowAccuracy]) -> Table:
    """Every measured rate beside its prediction."""
    table = plain_table(title="Every run, time of one step")
    table.add_column("run", overflow="fold")
    for heading in ("measured", "predicted", "error", "band"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.run.id + ("" if row.run.is_faithful else GAP_MARK), *_row_cells(row))
    return table


def _row_cells(row: TimedRowAccuracy) -> tuple[str, str, str, str]:
    measured = format_seconds(row.run.measured_s)
    if row.predicted_s is None or row.signed_error_fraction is None:
        return measured, NOTHING, NOTHING, "refused"
    inside = "inside" if row.is_in_band else "outside"
    return measured, format_seconds(row.predicted_s), signed_percent(row.signed_error_fraction), inside
