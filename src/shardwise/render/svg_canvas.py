"""What pictures share: texts, frames, stacked bars and keys of colours.

Pictures of lessons and of fronts have colours that read on light and dark (``framed``); all others stand on white.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap
from xml.sax.saxutils import escape

WIDTH = 1000.0
MARGIN = 16.0
TITLE_HEIGHT = 30.0
NOTE_HEIGHT = 18.0
NOTE_LETTERS = 130
"""A line of a note that fits the width in any common font."""
KEY_ROW_HEIGHT = 20.0
STYLE = """\
.bg{fill:#ffffff}.ink{fill:#222222}.soft{fill:#666666}.line{stroke:#888888}.grid{stroke:#dddddd}
.add{stroke:#d55e00}.copy{stroke:#0072b2}.addfill{fill:#d55e00}.copyfill{fill:#0072b2}
.bubble{fill:#e8e8e8;stroke:#bbbbbb}.held{fill:#cc79a7;fill-opacity:0.45}
@media (prefers-color-scheme: dark){
.bg{fill:#16181d}.ink{fill:#e6e6e6}.soft{fill:#a0a0a0}.line{stroke:#888888}.grid{stroke:#33363d}
.add{stroke:#ff8a3c}.copy{stroke:#56b4e9}.addfill{fill:#ff8a3c}.copyfill{fill:#56b4e9}
.bubble{fill:#2a2d34;stroke:#555a66}.held{fill:#e3a0c4;fill-opacity:0.45}
}"""
"""Okabe and Ito's palette; greys change with the reader's choice of light or dark."""
FONT = "font-family='system-ui, sans-serif' font-size='12'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """SVG elements that begin at y = 0."""

    elements: tuple[str, ...]
    height: float
    """Pixels."""


def text(x: float, y: float, words: str, *, style: str = "ink", anchor: str = "start", extra: str = "") -> str:
    """One line of text."""
    return f"<text x='{x:.1f}' y='{y:.1f}' class='{style}' text-anchor='{anchor}' {extra}>{escape(words)}</text>"


def line(start: tuple[float, float], end: tuple[float, float], *, style: str, width: float) -> str:
    """One straight line."""
    return (
        f"<line x1='{start[0]:.1f}' y1='{start[1]:.1f}' x2='{end[0]:.1f}' y2='{end[1]:.1f}' class='{style}' "
        f"stroke-width='{width:g}'/>"
    )


def titled(title: str, note: str, body: Drawing) -> Drawing:
    """A drawing under its title, with its note below."""
    elements = [
        text(MARGIN, 20, title, extra="font-weight='bold' font-size='14'"),
        f"<g transform='translate(0 {TITLE_HEIGHT:.0f})'>",
        *body.elements,
        "</g>",
    ]
    height = TITLE_HEIGHT + body.height
    for row in wrap(note, NOTE_LETTERS):
        elements.append(text(MARGIN, height + 13, row, style="soft"))
        height += NOTE_HEIGHT
    return Drawing(elements=tuple(elements), height=height + MARGIN)


def framed(drawings: Sequence[Drawing], *, label: str) -> str:
    """Drawings one under the other as one SVG element, ready for a file or a page."""
    height = sum(drawing.height for drawing in drawings)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH:.0f} {height:.0f}' width='{WIDTH:.0f}' "
        f"role='img' aria-label='{attribute(label)}'>",
        f"<style>{STYLE}</style>",
        f"<rect width='{WIDTH:.0f}' height='{height:.0f}' class='bg'/>",
        f"<g {FONT}>",
    ]
    top = 0.0
    for drawing in drawings:
        parts += [f"<g transform='translate(0 {top:.1f})'>", *drawing.elements, "</g>"]
        top += drawing.height
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


def on_white(parts: Iterable[str], *, size: tuple[float, float], label: str, font_size: int = 13) -> str:
    """Elements as one SVG element of this width and height, dark words on white, ready for a file or a page."""
    width, height = size
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}' width='{width:.0f}' "
        f"role='img' aria-label='{attribute(label)}'>",
        f"<rect width='{width:.0f}' height='{height:.0f}' fill='white'/>",
        f"<g font-family='system-ui, sans-serif' font-size='{font_size}' fill='#222'>",
    )
    return "\n".join([*head, *parts, "</g>", "</svg>"]) + "\n"


def stacked(parts: Iterable[tuple[float, str, str]], *, x: float, y: float, height: float) -> Iterator[str]:
    """Bars end to end from ``x``: the width of each in pixels, its colour and its tooltip. Empty ones are left out."""
    for width, colour, tip in parts:
        if width > 0:
            yield (
                f"<rect x='{x:.1f}' y='{y:.1f}' width='{width:.1f}' height='{height:.0f}' fill='{colour}'>"
                f"<title>{escape(tip)}</title></rect>"
            )
        x += width


def colour_key(names: Sequence[tuple[str, str]], *, top: float, width: float, num_columns: int) -> Iterator[str]:
    """Names with the colour of each, in columns."""
    for index, (name, colour) in enumerate(names):
        x, y = width / num_columns * (index % num_columns), top + KEY_ROW_HEIGHT * (index // num_columns)
        yield f"<rect x='{x:.0f}' y='{y:.0f}' width='12' height='12' fill='{colour}'/>"
        yield f"<text x='{x + 18:.0f}' y='{y + 11:.0f}'>{escape(name)}</text>"


def key_height(num_names: int, *, num_columns: int) -> float:
    """Pixels of such a key."""
    return KEY_ROW_HEIGHT * -(-num_names // num_columns)


def attribute(words: str) -> str:
    """A text inside single quotes."""
    return escape(words, {"'": "&apos;", '"': "&quot;"})
