"""Numbers of a lesson as people write them, by the unit of their column."""

from collections.abc import Callable, Mapping

from shardwise.claims import Cell, Unit
from shardwise.course.lesson import LessonTable
from shardwise.units import (
    format_bytes,
    format_count,
    format_decimal_bytes,
    format_percent,
    format_seconds,
)

SMALL, LARGE = 1e-3, 1e12
"""Numbers between these are written with 6 digits."""


def cell_text(value: Cell, unit: Unit) -> str:
    """One cell.

    >>> cell_text(67108864, "bytes"), cell_text(0.1875, "fraction"), cell_text(None, "s")
    ('64.00 MiB', '18.75%', '')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return _TEXT_OF[unit](value)


def short_what(what: str) -> str:
    """What a message carries, without the word that all of them share.

    >>> short_what("chunks 4-7"), short_what("part for 3"), short_what("weights")
    ('4-7', 'for 3', 'weights')
    """
    first, _, rest = what.partition(" ")
    return rest if first in ("chunk", "chunks", "part") else what


def row_texts(table: LessonTable) -> tuple[tuple[str, ...], ...]:
    """All cells of a table."""
    units = [column.unit for column in table.columns]
    return tuple(tuple(cell_text(cell, unit) for cell, unit in zip(row, units, strict=True)) for row in table.rows)


def is_number_column(table: LessonTable, index: int) -> bool:
    """Whether a column is aligned to the right: it has numbers, and no texts."""
    cells = [row[index] for row in table.rows if row[index] is not None]
    return bool(cells) and not any(isinstance(cell, str) for cell in cells)


def _plain(value: float) -> str:
    """Whole numbers whole, others with 6 digits, very small and very large ones with 3."""
    if float(value).is_integer() and abs(value) < LARGE:
        return f"{int(value):,}"
    return f"{value:.6g}" if SMALL <= abs(value) < LARGE else f"{value:.3g}"


def _percent(value: float) -> str:
    return format_percent(value) if abs(value) >= 1 else f"{value:.2%}"


def _seconds(value: float) -> str:
    return f"-{format_seconds(-value)}" if value < 0 else format_seconds(value)


_TEXT_OF: Mapping[Unit, Callable[[float], str]] = {
    "": _plain,
    "count": _plain,
    "number": _plain,
    "time_units": _plain,
    "bytes": format_bytes,
    "decimal_bytes": format_decimal_bytes,
    "s": _seconds,
    "fraction": _percent,
    "ratio": lambda value: f"{value:.4g}x",
    "flop": lambda value: f"{format_count(value)}FLOP",
    "bytes_per_s": lambda value: f"{format_decimal_bytes(value)}/s",
}
