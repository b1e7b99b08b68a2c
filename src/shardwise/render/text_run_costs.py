"""Published costs of whole runs beside their predictions, as text."""

from collections.abc import Iterator
from statistics import median

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.render.text_validation import signed_percent, unused_table
from shardwise.units import format_count, format_percent
from shardwise.validate.run_costs import RunCostComparison, RunCostReport

CONTRADICTION = "its own figures contradict each other: this step does not give the printed amount"


def run_costs_text(report: RunCostReport, *, has_unused: bool = False, style: TextStyle = PLAIN) -> str:
    """Everything ``shardwise validate --quantity cost`` prints."""
    return page_text(run_cost_parts(report, has_unused=has_unused), style=style)


def run_cost_parts(report: RunCostReport, *, has_unused: bool) -> Iterator[RenderableType]:
    """The parts of the page, in reading order."""
    yield run_cost_table(report)
    yield Text()
    yield outside_table(report)
    if has_unused and report.unused:
        yield Text()
        yield unused_table(report.unused)
    yield Text()
    yield Text(summary(report))


def summary(report: RunCostReport) -> str:
    """How many lie inside, and what the band of the others was."""
    of_setup = [row for row in report.rows if row.is_of_setup and row.is_blind]
    groups = (
        ("by a predicted step of the set-up that the source states", of_setup),
        ("where it states neither set-up nor rate, by the default MFU", [row for row in report.rows if row.is_default]),
        ("by the rate that it prints", [row for row in report.rows if row.is_of_rate]),
        ("of single steps of its own arithmetic", [row for row in report.rows if row.is_step]),
    )
    gaps = [row for row in report.rows if row.gap]
    fitted = [row for row in report.rows if row.fitted]
    constants = {row.fitted: ", ".join(one.id for one in fitted if one.fitted == row.fitted) for row in fitted}
    said = "; ".join(
        f"{sum(row.is_in_band for row in rows)} of {len(rows)} {name} (median {_median_errors(rows)})"
        for name, rows in groups
    )
    blind = [row for row in report.rows if row.is_blind]
    return (
        f"Inside their band lie {said}. Only the first {len(blind)} are predicted blind (median "
        f"{_median_errors(blind)}); the others repeat what the source prints. {len(gaps)} bills marked * are of runs "
        f"that did what no cost can say, and {len(fitted)} marked + of runs that constants were taken from "
        f"({'; '.join(f'{ids}: {told}' for told, ids in constants.items())}); both are in no total. "
        f"{len(report.unused)} rows state too little (--unused says what). The default MFU and its band are the middle "
        "and nine in ten of published rates on the architecture. A bill above its band bought more than steps at a "
        "usual rate: old kernels, small models, or restarts and evaluation that the source counts."
    )


def _median_errors(rows: list[RunCostComparison]) -> str:
    """The middles of the signed errors, of which negative ones are too cheap, and of their sizes."""
    errors = [row.signed_error_fraction for row in rows]
    return f"error {signed_percent(median(errors))}, size {format_percent(median(map(abs, errors)))}"


def outside_table(report: RunCostReport) -> Table:
    """Why each figure outside its band may be there: the rate it implies, and what its source says."""
    table = plain_table(title="Outside their band", padding=(0, 1, 0, 0))
    table.add_column("bill", no_wrap=True)
    table.add_column("run", overflow="fold")
    table.add_column("rests on", overflow="fold")
    table.add_column("implies", justify="right", no_wrap=True)
    table.add_column("what is known of it", overflow="fold")
    for row in report.outside:
        implied = "" if row.implied_mfu_fraction is None else f"MFU {format_percent(row.implied_mfu_fraction)}"
        table.add_row(
            row.id,
            row.model,
            row.basis,
            implied,
            CONTRADICTION if row.is_step else "; ".join(filter(None, (row.gap, row.note))),
        )
    return table


def run_cost_table(report: RunCostReport) -> Table:
    """One line a figure: published, predicted, band."""
    table = plain_table(title="Published costs, predicted against printed", padding=(0, 1, 0, 0))
    table.add_column("bill", no_wrap=True)
    table.add_column("run", overflow="fold")
    table.add_column("figure", no_wrap=True)
    for heading in ("printed", "predicted", "error", "band"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in report.rows:
        table.add_row(row.id, row.model + "*" * bool(row.gap) + "+" * bool(row.fitted), row.quantity, *_cells(row))
    return table


def _cells(row: RunCostComparison) -> tuple[str, str, str, str]:
    return (
        format_count(row.published_amount),
        format_count(row.predicted_amount),
        signed_percent(row.signed_error_fraction),
        "inside" if row.is_in_band else "outside",
    )
