"""The help page of one command: the same text on every Python version, because docs/cli.md is made of it."""

import argparse
from collections.abc import Sequence
from textwrap import wrap

from shardwise.cli.help_examples import PAGES, HelpStart

WIDTH = 100
HELP_COLUMN = 34


def help_page(parser: argparse.ArgumentParser) -> str:
    """Usage, what the command does, about ten common options, two examples, and then the other options by group."""
    start = PAGES.get(parser.prog.rpartition(" ")[2], HelpStart())
    parts = [f"Usage: {parser.prog} {_positionals(parser)}[OPTIONS]", (parser.description or "").strip()]
    shown = [action for action in parser._actions if action.help is not argparse.SUPPRESS]
    by_name = {name: action for action in shown for name in action.option_strings}
    common = [by_name[name] for name in start.common]
    parts += _group("Arguments", [action for action in shown if not action.option_strings])
    parts += _group("Common options", common)
    if start.examples:
        parts.append("\n".join(["Examples:", *(f"  {example}" for example in start.examples)]))
    for group in parser._action_groups:
        rest = [one for one in group._group_actions if one in shown and one.option_strings and one not in common]
        title = (group.title or "Options").capitalize()
        parts += _group("Other options" if common and title == "Options" else title, rest)
    return "\n\n".join(parts) + "\n"


def _group(title: str, actions: Sequence[argparse.Action]) -> list[str]:
    """One part of the page; none without actions."""
    return ["\n".join([f"{title}:", *map(_row, actions)])] if actions else []


def option_names(parser: argparse.ArgumentParser) -> list[str]:
    """Every option of a command as it is typed, sorted; positional arguments by their metavar."""
    names: set[str] = set()
    for action in parser._actions:
        names.update(action.option_strings or [str(action.metavar or action.dest)])
    return sorted(names)


def _positionals(parser: argparse.ArgumentParser) -> str:
    words = []
    for action in parser._actions:
        if not action.option_strings:
            word = f"{action.metavar or action.dest}{' ...' if action.nargs in ('*', '+') else ''}"
            words.append(f"[{word}] " if action.nargs in ("?", "*") else f"{word} ")
    return "".join(words)


def _row(action: argparse.Action) -> str:
    left = f"  {_left(action)}"
    lines = wrap(action.help or "", WIDTH - HELP_COLUMN) or [""]
    if len(left) + 2 > HELP_COLUMN:
        return "\n".join([left, *(" " * HELP_COLUMN + line for line in lines)])
    return "\n".join([f"{left:<{HELP_COLUMN}}{lines[0]}", *(" " * HELP_COLUMN + line for line in lines[1:])]).rstrip()


def _left(action: argparse.Action) -> str:
    if not action.option_strings:
        return str(action.metavar or action.dest)
    if isinstance(action, argparse.BooleanOptionalAction):
        return f"--[no-]{action.option_strings[0].removeprefix('--')}"
    names = ", ".join(action.option_strings)
    if action.nargs == 0:
        return names
    if action.metavar is None and action.choices is not None:
        return f"{names} {'|'.join(str(choice) for choice in action.choices)}"
    return f"{names} {action.metavar or action.dest.upper()}"
