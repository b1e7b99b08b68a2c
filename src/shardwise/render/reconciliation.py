"""A reconciliation as text."""

from collections.abc import Iterable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from shardwise.reconcile.totals import Group, ReconciledRow, Reconciliation
from shardwise.render.question import plan_lines
from shardwise.render.screen_lines import screen_width
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.render.text_validation import signed_percent
from shardwise.render.utilisation import utilisation_lines
from shardwise.units import format_gib, format_percent, format_seconds

NOTHING = "-"
GROUP_TITLES: dict[Group, str] = {
    "total": "Predicted beside measured",
    "memory": "Memory of the fullest rank, part by part",
    "time": "A profiled step, part by part",
    "communication": "Collectives of that step",
}
BAND_WORDS = {None: "-", True: "inside", False: "outside"}


def reconciliation_text(found: Reconciliation, *, style: TextStyle = PLAIN) -> str:
    """Everything ``shardwise reconcile`` prints."""
    return page_text([*plan_lines(found.plan, screen_width(style)), *_parts(found)], style=style)


def _parts(found: Reconciliation) -> Iterator[RenderableType]:
    header = Table.grid(padding=(0, 2))
    header.add_row("measured by", f"{found.measured.trainer}, {found.measured.num_steps} steps")
    yield header
    yield Text()
    for group, title in GROUP_TITLES.items():
        rows = found.group(group)
        if rows:
            yield _table(rows, title=title)
            yield Text()
    yield from _cause_lines(found)
    yield Text("Errors are predicted over measured minus one: negative is too little.")
    if found.step_time_ratio is not None:
        yield Text(f"This machine takes {found.step_time_ratio:.3f} times the predicted step.")
    yield from utilisation_lines(found.utilisations)
    for note in found.measured.notes:
        yield Text(f"warning: {note}", style="yellow")


def _table(rows: Iterable[ReconciledRow], *, title: str) -> Table:
    table = plain_table(title=title)
    table.add_column("quantity")
    for heading in ("predicted", "measured", "error", "band"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.quantity.replace("_", " "),
            _amount(row, row.predicted_amount),
            _amount(row, row.measured_amount),
            NOTHING if row.signed_error_fraction is None else signed_percent(row.signed_error_fraction),
            BAND_WORDS[row.is_in_band],
        )
    return table


def _cause_lines(found: Reconciliation) -> Iterator[Text]:
    """The few parts that explain most of what differs."""
    if not found.causes:
        return
    yield Text("What explains most of the difference", style="bold")
    for cause in found.causes:
        row = cause.row
        amount = _amount(row, abs(row.gap_amount))
        way = "more" if row.gap_amount > 0 else "less"
        share = format_percent(cause.share_fraction)
        yield Text(
            f"- {row.quantity.replace('_', ' ')}: {amount} {way} than predicted, {share} of what differs in {row.group}"
        )
    yield Text()


def _amount(row: ReconciledRow, amount: float) -> str:
    return format_seconds(amount) if row.unit == "s" else format_gib(amount)
