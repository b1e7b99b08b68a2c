"""What the pictures of lessons share: colours that read on light and dark, texts, and the frame around them."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH = 1000.0
MARGIN = 16.0
TITLE_HEIGHT = 30.0
NOTE_HEIGHT = 18.0
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
    if note:
        elements.append(text(MARGIN, height + 13, note, style="soft"))
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


def attribute(words: str) -> str:
    """A text inside single quotes."""
    return escape(words, {"'": "&apos;", '"': "&quot;"})
