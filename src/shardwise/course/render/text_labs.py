"""The list of labs as text."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from shardwise.render.terminal import PLAIN, TextStyle, page_text

INDENT = 2


def labs_text(labs: Sequence[tuple[str, str, str]], *, style: TextStyle = PLAIN) -> str:
    """Name, summary and question of every lab."""
    return page_text(_parts(labs), style=style)


def _parts(labs: Sequence[tuple[str, str, str]]) -> Iterator[RenderableType]:
    yield Text("Labs: each a question, answered by a few real training runs on this machine")
    for name, summary, question in labs:
        yield Text()
        yield Text.assemble((name, "bold"), f"  {summary}")
        yield Padding(Text(question), (0, 0, 0, INDENT))
    yield Text()
    yield Text("Run one with `shardwise lab NAME`.")
