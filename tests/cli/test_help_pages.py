"""Help pages begin with what is asked for most: about ten options and two commands that the program takes."""

import shlex
import subprocess
import sys

import pytest

from shardwise.cli.command import COMMANDS, find_command, make_parser
from shardwise.cli.help_examples import PAGES
from shardwise.cli.help_page import option_names
from shardwise.cli.reference import whole_parser

NAMES = [entry.name for entry in COMMANDS]


def parser_of(name):
    entry = find_command(name)
    return make_parser(entry, entry.load())


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_two_examples_that_the_program_takes(name):
    assert len(PAGES[name].examples) == 2
    for example in PAGES[name].examples:
        program, command, *words = shlex.split(example)
        assert (program, command) == ("shardwise", name)
        parser_of(name).parse_args(words)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_with_many_options_begins_with_about_ten(name):
    common, known = PAGES[name].common, option_names(parser_of(name))
    assert set(common) <= set(known)
    assert len(set(common)) == len(common)
    assert 8 <= len(common) <= 11 if len(known) > 14 else not common


@pytest.mark.parametrize("name", NAMES)
def test_every_option_stands_on_its_page_once_and_the_common_ones_before_the_examples(name):
    page = parser_of(name).format_help()
    head, examples, tail = page.partition("Examples:")
    assert examples
    rows = [line.split()[0].rstrip(",") for line in page.splitlines() if line.startswith("  -")]
    assert len(set(rows)) == len(rows)
    for option in PAGES[name].common:
        shown = {option, f"--[no-]{option.removeprefix('--')}"}
        assert any(f"\n  {word} " in head or f"\n  {word}\n" in head for word in shown)
        assert not any(f"\n  {word} " in tail for word in shown)


def test_a_command_that_is_not_in_the_table_shows_all_its_options(monkeypatch):
    monkeypatch.setattr("shardwise.cli.help_page.PAGES", {})
    page = parser_of("plan").format_help()
    assert "Common options:" not in page
    assert "\nOptions:\n  -h, --help" in page


def test_one_parser_has_every_command_and_completes_names_of_files():
    (commands,) = [action for action in whole_parser()._actions if action.choices]
    assert list(commands.choices) == NAMES
    out = next(action for action in commands.choices["plan"]._actions if "--out" in action.option_strings)
    assert out.complete["zsh"] == "_files"


def test_shtab_writes_a_script_that_completes():
    pytest.importorskip("shtab")
    command = [sys.executable, "-m", "shtab", "--shell=bash", "shardwise.cli.reference.whole_parser"]
    script = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    typed = "COMP_WORDS=(shardwise plan --global-batch-t); COMP_CWORD=2; _shtab_shardwise; echo ${COMPREPLY[@]}"
    done = subprocess.run(["bash", "-c", f"{script}\n{typed}"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["--global-batch-tokens"]
