"""The accuracy report as text: signed errors per family, answers to "does it fit?", and every row when asked."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.render.names import gib_number
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.units import format_percent
from shardwise.validate.accuracy import FITTED_FAMILIES, AccuracyReport, ErrorSummary, FitSummary, RowAccuracy
from shardwise.validate.records import UnusedRow

NOTHING = "-"


def validation_text(
    report: AccuracyReport, *, has_rows: bool = False, has_unused: bool = False, style: TextStyle = PLAIN
) -> str:
    """Everything ``shardwise validate`` prints."""
    return page_text(validation_parts(report, has_rows=has_rows, has_unused=has_unused), style=style)


def validation_parts(report: AccuracyReport, *, has_rows: bool, has_unused: bool) -> Iterator[RenderableType]:
    """The parts of the page, in reading order."""
    if has_rows:
        yield rows_table(report.rows)
        yield Text()
    yield errors_table(report)
    yield Text()
    yield fits_table((*report.fits_by_family, report.fits))
    if has_unused and report.unused:
        yield Text()
        yield unused_table(report.unused)
    yield Text()
    yield Text(
        f"{len(report.rows)} readings are repeated by a plan; {len(report.unused)} are not (--unused says why). "
        "Errors are predicted over measured minus one, zero inside what a printed figure can mean. Families above the "
        f"first line fitted nothing; {', '.join(FITTED_FAMILIES)} fitted constants and the band."
    )


def errors_table(report: AccuracyReport) -> Table:
    """Signed and absolute errors per family and scope: of families that fitted nothing, of the others, and of all."""
    table = plain_table(title="Peak memory, predicted against measured", padding=(0, 1, 0, 0))
    table.add_column("family")
    table.add_column("figure")
    for heading in ("rows", "median", "|median|", "|90%|", "|max|", "in band"):
        table.add_column(heading, justify="right", no_wrap=True)
    blind = [summary for summary in report.families if summary.name not in FITTED_FAMILIES]
    others = [summary for summary in report.families if summary not in blind]
    engines = [replace(summary, name=f"  {summary.name}") for summary in report.reported_engines]
    for summaries in (blind, (*report.reported, *engines), others, (*report.fitted, *report.overall)):
        for summary in summaries:
            table.add_row(*_error_cells(summary))
        table.add_section()
    return table


def _error_cells(summary: ErrorSummary) -> tuple[str, ...]:
    return (
        summary.name,
        summary.scope,
        str(summary.num_readings),
        signed_percent(summary.median_signed_fraction),
        format_percent(summary.median_absolute_fraction),
        format_percent(summary.p90_absolute_fraction),
        format_percent(summary.max_absolute_fraction),
        format_percent(summary.in_band_fraction),
    )


def fits_table(summaries: Sequence[FitSummary]) -> Table:
    """Right and wrong answers to "does it fit?"."""
    table = plain_table(title="Does it fit? What happened: what was predicted")
    table.add_column("family")
    for heading in ("rows", "right", "fits: fits", "fits: OOM", "OOM: fits", "OOM: OOM"):
        table.add_column(heading, justify="right")
    for summary in summaries:
        table.add_row(
            summary.name,
            str(summary.num_rows),
            format_percent(summary.correct_fraction),
            str(summary.num_fits_right),
            str(summary.num_fits_wrong),
            str(summary.num_oom_wrong),
            str(summary.num_oom_right),
        )
    return table


def rows_table(rows: Iterable[RowAccuracy]) -> Table:
    """Every reading beside its prediction."""
    table = plain_table(title="Every reading, in GiB")
    table.add_column("run", overflow="fold")
    table.add_column("figure")
    for heading in ("measured", "predicted", "error", "fits"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(row.run.id, row.run.scope, _measured(row), *_predicted_cells(row))
    return table


def _measured(row: RowAccuracy) -> str:
    low, high = row.run.measured_low_bytes, row.run.measured_high_bytes
    if low is None or high is None:
        return row.run.outcome
    low_text, high_text = gib_number(low), gib_number(high)
    return low_text if low_text == high_text else f"{low_text}..{high_text}"


def _predicted_cells(row: RowAccuracy) -> tuple[str, str, str]:
    answer = {None: "", True: "fits", False: "OOM"}[row.predicted_fits]
    return (
        gib_number(row.predicted_bytes) if row.predicted_bytes is not None else NOTHING,
        signed_percent(row.signed_error_fraction) if row.signed_error_fraction is not None else NOTHING,
        "refused" if row.refusal else answer,
    )


def unused_table(rows: Sequence[UnusedRow]) -> Table:
    """Why rows of the sources are left out, by reason."""
    table = plain_table(title="Readings that no plan repeats")
    table.add_column("rows", justify="right")
    table.add_column("family")
    table.add_column("why")
    for (family, reason), count in Counter((row.family, row.reason) for row in rows).most_common():
        table.add_row(str(count), family, reason)
    return table


def signed_percent(fraction: float) -> str:
    """A share in percent with its sign, so that optimistic and pessimistic read apart."""
    text = format_percent(fraction)
    return text if fraction < 0 else f"+{text}"
