"""Predicted parts beside measured ones: two stacked bars on one scale, of a step's time or of a rank's memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape

from shardwise.reconcile.totals import ReconciledRow

LABEL_WIDTH = 90.0
BAR_WIDTH = 760.0
BAR_HEIGHT = 26.0
ROW_HEIGHT = 36.0
KEY_COLUMNS = 4
KEY_ROW = 20.0
FONT = "font-family='system-ui, sans-serif' font-size='13' fill='#222'"


def pair_svg(rows: Sequence[ReconciledRow], *, colours: Mapping[str, str], amount: Callable[[float], str]) -> str:
    """The picture as one SVG element.

    Args:
        amount: how an amount of the rows' unit is written.
    """
    sides = {
        "predicted": [(row.quantity, row.predicted_amount) for row in rows],
        "measured": [(row.quantity, row.measured_amount) for row in rows],
    }
    most = max((sum(part for _, part in parts) for parts in sides.values()), default=0.0)
    height = ROW_HEIGHT * len(sides) + 12 + KEY_ROW * -(-len(rows) // KEY_COLUMNS)
    width = LABEL_WIDTH + BAR_WIDTH + 100
    bars = (
        _bar(
            name, parts, y=ROW_HEIGHT * number, scale=BAR_WIDTH / most if most else 0.0, colours=colours, amount=amount
        )
        for number, (name, parts) in enumerate(sides.items())
    )
    size = f"viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}'"
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img'>"
        f"<g {FONT}>{''.join(part for bar in bars for part in bar)}"
        f"{''.join(_key(rows, colours, top=ROW_HEIGHT * len(sides) + 10))}</g></svg>\n"
    )


def _bar(
    name: str,
    parts: Sequence[tuple[str, float]],
    *,
    y: float,
    scale: float,
    colours: Mapping[str, str],
    amount: Callable[[float], str],
) -> Iterator[str]:
    yield f"<text x='0' y='{y + 19:.0f}'>{name}</text>"
    x = LABEL_WIDTH
    for part, size in parts:
        yield (
            f"<rect x='{x:.1f}' y='{y:.0f}' width='{scale * size:.1f}' height='{BAR_HEIGHT:.0f}' "
            f"fill='{colours.get(part, '#999')}'><title>{escape(part)}: {escape(amount(size))}</title></rect>"
        )
        x += scale * size
    yield f"<text x='{x + 8:.0f}' y='{y + 19:.0f}'>{escape(amount(sum(size for _, size in parts)))}</text>"


def _key(rows: Sequence[ReconciledRow], colours: Mapping[str, str], *, top: float) -> Iterator[str]:
    for number, row in enumerate(rows):
        x = (LABEL_WIDTH + BAR_WIDTH) / KEY_COLUMNS * (number % KEY_COLUMNS)
        y = top + KEY_ROW * (number // KEY_COLUMNS)
        yield f"<rect x='{x:.0f}' y='{y:.0f}' width='12' height='12' fill='{colours.get(row.quantity, '#999')}'/>"
        yield f"<text x='{x + 18:.0f}' y='{y + 11:.0f}'>{escape(row.quantity.replace('_', ' '))}</text>"
