"""Predicted parts beside measured ones: two stacked bars on one scale, of a step's time or of a rank's memory."""

from collections.abc import Callable, Mapping, Sequence
from html import escape

from shardwise.reconcile.totals import ReconciledRow
from shardwise.render.svg_canvas import colour_key, key_height, on_white, stacked

LABEL_WIDTH = 90.0
BAR_WIDTH = 760.0
BAR_HEIGHT = 26.0
ROW_HEIGHT = 36.0
KEY_COLUMNS = 4
OTHER = "#999"


def pair_svg(rows: Sequence[ReconciledRow], *, colours: Mapping[str, str], amount: Callable[[float], str]) -> str:
    """The picture as one SVG element.

    Args:
        amount: how an amount of the rows' unit is written.
    """
    sides = {
        "predicted": [(row.quantity, row.predicted_amount) for row in rows],
        "measured": [(row.quantity, row.measured_amount) for row in rows],
    }
    most = max((sum(size for _, size in sizes) for sizes in sides.values()), default=0.0)
    scale = BAR_WIDTH / most if most else 0.0
    parts: list[str] = []
    for number, (name, sizes) in enumerate(sides.items()):
        y, whole = ROW_HEIGHT * number, sum(size for _, size in sizes)
        bars = ((scale * size, colours.get(part, OTHER), f"{part}: {amount(size)}") for part, size in sizes)
        end = LABEL_WIDTH + scale * whole + 8
        parts += [
            f"<text x='0' y='{y + 19:.0f}'>{name}</text>",
            *stacked(bars, x=LABEL_WIDTH, y=y, height=BAR_HEIGHT),
            f"<text x='{end:.0f}' y='{y + 19:.0f}'>{escape(amount(whole))}</text>",
        ]
    bottom = ROW_HEIGHT * len(sides)
    names = [(row.quantity.replace("_", " "), colours.get(row.quantity, OTHER)) for row in rows]
    parts += colour_key(names, top=bottom + 10, width=LABEL_WIDTH + BAR_WIDTH, num_columns=KEY_COLUMNS)
    return on_white(
        parts,
        size=(LABEL_WIDTH + BAR_WIDTH + 100, bottom + 12 + key_height(len(rows), num_columns=KEY_COLUMNS)),
        label="predicted beside measured",
    )
