"""What runs taught, as text."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from shardwise.reconcile.calibration import LearnedCalibration
from shardwise.render.terminal import PLAIN, TextStyle, page_text, plain_table
from shardwise.render.text_validation import signed_percent


def learned_text(found: LearnedCalibration, *, style: TextStyle = PLAIN) -> str:
    """The factors, every run before and after, and those that got worse."""
    return page_text(_parts(found), style=style)


def _parts(found: LearnedCalibration) -> Iterator[RenderableType]:
    factors = plain_table(title="The calibration that follows")
    factors.add_column("factor")
    for heading in ("times", "runs"):
        factors.add_column(heading, justify="right", no_wrap=True)
    for residual in found.calibration.residuals:
        factors.add_row(residual.name, f"{residual.ratio:.3f}", str(residual.num_runs))
    yield factors
    yield Text()
    changes = plain_table(title="Errors before and after")
    changes.add_column("run", overflow="fold")
    changes.add_column("quantity")
    for heading in ("before", "after"):
        changes.add_column(heading, justify="right", no_wrap=True)
    for change in found.changes:
        changes.add_row(
            change.run, change.quantity, signed_percent(change.before_fraction), signed_percent(change.after_fraction)
        )
    yield changes
    for change in found.worse:
        yield Text(
            f"warning: {change.run} was predicted better before: {change.quantity} "
            f"{signed_percent(change.before_fraction)}, now {signed_percent(change.after_fraction)}",
            style="yellow",
        )
