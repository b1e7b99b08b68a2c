"""Utilisations as lines of text: the number, and beside it what it is a share of."""

from collections.abc import Iterable, Iterator

from rich.text import Text

from shardwise.reconcile.utilisation import Utilisation
from shardwise.units import format_percent


def utilisation_lines(found: Iterable[Utilisation]) -> Iterator[Text]:
    """One line for each convention."""
    for one in found:
        if one.predicted_fraction is None:
            yield Text(f"no MFU by {one.convention}: {one.refusal}", style="yellow")
            continue
        predicted = format_percent(one.predicted_fraction)
        measured = "none" if one.measured_fraction is None else format_percent(one.measured_fraction)
        yield Text(f"MFU {measured} measured, {predicted} predicted ({one.convention})")
        if one.refusal:
            yield Text(f"  none measured: {one.refusal}", style="yellow")
