"""docs/cli.md is what the program says about itself, and every code block of commands in the README parses."""

import re
import shlex

import pytest

from habits.source_tree import ROOT
from shardwise.cli.command import COMMANDS, find_command, make_parser
from shardwise.cli.reference import reference_page
from shardwise.errors import UsageError

PAGES = ("README.md", "docs/cli.md", "docs/errors.md", "docs/design.md", "CONTRIBUTING.md")
COMMAND_LINE = re.compile(r"^\s*(?:\$ )?(shardwise (?!COMMAND)[a-z].*)$", flags=re.MULTILINE)


def command_lines(text: str) -> list[str]:
    """Lines of a page that call the program; pipes, redirections and comments cut off."""
    return [re.split(r"\s[|<>#]", line)[0].strip() for line in COMMAND_LINE.findall(text)]


def parse(line: str) -> None:
    """Parse a command line as the program would; raises a UsageError when it would refuse."""
    words = shlex.split(line)[1:]
    entry = find_command(words[0])
    make_parser(entry, entry.load()).parse_args(words[1:])


def shown_lines() -> list[str]:
    pages = [(ROOT / page) for page in PAGES if (ROOT / page).exists()]
    return sorted({line for page in pages for line in command_lines(page.read_text(encoding="utf-8"))})


def test_the_reference_is_what_the_program_says():
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == reference_page(), "run `make docs`"


def test_every_command_is_in_the_reference():
    assert [entry.name for entry in COMMANDS if f"## shardwise {entry.name}\n" not in reference_page()] == []


@pytest.mark.parametrize("line", shown_lines())
def test_a_command_shown_in_the_documentation_is_one_the_program_takes(line):
    parse(line)


def test_a_command_that_would_be_refused_is_found():
    lines = command_lines("text\n    $ shardwise plan llama-3.1-8b 8xh100-sxm --seqlen 4 | head\n")
    assert lines == ["shardwise plan llama-3.1-8b 8xh100-sxm --seqlen 4"]
    with pytest.raises(UsageError):
        parse(lines[0])
