"""docs/mistakes.md, made from the table of kinds: ``python -m shardwise.exchange.mistakes.page > docs/mistakes.md``."""

import sys

from shardwise.exchange.mistakes import load_kinds
from shardwise.exchange.mistakes.rule import SEVERITY, ToolSays

HEAD = """\
# Mistakes in files of other tools

`shardwise import` tells these kinds of mistakes, each with the place, the numbers and the fix in that tool's words.
Kinds are grouped by what the tool itself does, so that what nobody else tells you comes first.
"""
TITLES: dict[ToolSays, str] = {
    "silent": "The tool says nothing",
    "warns": "The tool warns",
    "hangs": "The run hangs",
    "crashes": "The run crashes",
    "refused": "The tool refuses to start",
}


def mistakes_page() -> str:
    """The page as Markdown."""
    parts = [HEAD]
    for word in SEVERITY:
        rows = [f"| `{kind.code}` | {kind.what} | {kind.source} |" for kind in load_kinds() if kind.tool_says == word]
        if rows:
            parts.append(
                "\n".join([f"## {TITLES[word]}\n", "| kind | what is wrong | source |", "|---|---|---|", *rows, ""])
            )
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(mistakes_page())
