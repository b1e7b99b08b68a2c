"""The page that every report with pictures is: one HTML file that works offline, without scripts."""

from collections.abc import Iterable
from html import escape

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font-family: system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
svg {{ max-width: 100%; height: auto; }}
figure {{ margin: 1rem 0; }}
pre {{ overflow-x: auto; background: #f6f6f6; padding: 1rem; }}
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def page_html(title: str, body: Iterable[str], *, style: str = "") -> str:
    """The whole page.

    Args:
        title: of the window, as text.
        body: the elements one after the other, as HTML.
        style: rules that this page has beside those of all, as CSS.
    """
    return PAGE.format(title=escape(title), style=style, body="\n".join(body))


def element(name: str, words: str) -> str:
    """A text as an HTML element."""
    return f"<{name}>{escape(words)}</{name}>"


def figure(picture: str) -> str:
    """An SVG element as a figure."""
    return f"<figure>\n{picture}</figure>"
