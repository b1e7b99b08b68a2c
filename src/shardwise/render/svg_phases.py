"""Memory over a step as an SVG picture: the high-water mark of every phase, predicted beside measured."""

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from shardwise.render.svg_canvas import colour_key, on_white, stacked
from shardwise.units import Bytes, format_bytes

LABEL_WIDTH, BAR_WIDTH, AMOUNT_WIDTH = 90.0, 760.0, 130.0
BAR_HEIGHT, ROW_HEIGHT, TOP = 15.0, 44.0, 8.0
KEY_WIDTH = 240.0
SIDES = (("predicted", "#56b4e9"), ("measured", "#0072b2"))


def phases_svg(rows: Sequence[tuple[str, Bytes, Bytes]]) -> str:
    """The picture as one SVG element.

    Args:
        rows: a phase, and the most it holds as predicted and as measured.
    """
    most = max(amount for _, *amounts in rows for amount in amounts) or 1
    parts = [part for number, row in enumerate(rows) for part in _row(number, row, BAR_WIDTH / most)]
    bottom = TOP + ROW_HEIGHT * len(rows)
    key = colour_key(SIDES, top=bottom + 6, width=KEY_WIDTH, num_columns=len(SIDES))
    return on_white(
        [*parts, f"<g transform='translate({LABEL_WIDTH:.0f} 0)'>", *key, "</g>"],
        size=(LABEL_WIDTH + BAR_WIDTH + AMOUNT_WIDTH, bottom + 24),
        label="memory over the step, predicted beside measured",
    )


def _row(number: int, row: tuple[str, Bytes, Bytes], scale: float) -> Iterator[str]:
    phase, *amounts = row
    top = TOP + ROW_HEIGHT * number
    yield f"<text x='0' y='{top + 20:.0f}'>{escape(phase)}</text>"
    for side, ((name, colour), amount) in enumerate(zip(SIDES, amounts, strict=True)):
        y, width = top + (BAR_HEIGHT + 2) * side, scale * amount
        tip = f"{phase}, {name}: {format_bytes(amount)}"
        yield from stacked([(width, colour, tip)], x=LABEL_WIDTH, y=y, height=BAR_HEIGHT)
        yield f"<text x='{LABEL_WIDTH + width + 8:.0f}' y='{y + 12:.0f}'>{format_bytes(amount)}</text>"
