"""What a command is: a module with two functions, found by name and imported only when it is asked for."""

import argparse
import gc
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn, Protocol, cast

from shardwise.errors import UsageError

EXIT_OK = 0
EXIT_DOES_NOT_FIT = 3
"""An answer, not a failure: the plan does not fit, or no plan does."""
NEGATIVE_VALUE = re.compile(r"-\.?[0-9]")


class Command(Protocol):
    """The two functions every file in ``cli/`` named after a command has."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of the command."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it, print it, and return the exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEntry:
    """A row of ``shardwise --help``."""

    name: str
    summary: str
    module: str = ""
    """The file in ``cli/``, where it cannot be called like the command."""
    reads_recipes: bool = False
    """Whether a file may hold its options (``cli/recipe_file.py``)."""
    runs_long: bool = False
    """Whether it runs for minutes or with torch, so that cycles of garbage have to be freed meanwhile."""

    def load(self) -> Command:
        """Import the module of the command."""
        return cast("Command", import_module(f"shardwise.cli.{self.module or self.name}"))


COMMANDS = (
    CommandEntry(name="plan", summary="rank the layouts of a model on a cluster"),
    CommandEntry(name="predict", summary="memory, step time and cost of a plan, or of a JSONL file of plans"),
    CommandEntry(name="explain", summary="why a plan fits or not, what dominates, what to change; what an OOM was"),
    CommandEntry(name="judge", summary="whether a reported tokens/s, TFLOP/s, MFU or step time is good, and why not"),
    CommandEntry(
        name="import",
        module="import_files",
        summary="what the files of another training tool mean, what they leave open, and what is wrong in them",
    ),
    CommandEntry(name="export", summary="a plan as files of torchtitan, Megatron-LM, DeepSpeed or Accelerate"),
    CommandEntry(name="timeline", summary="the predicted step drawn, stream by stream, for Perfetto or as a page"),
    CommandEntry(
        name="simulate", summary="a strategy simulated step by step, with tables and pictures to check by hand"
    ),
    CommandEntry(name="cost", summary="GPU-hours, dollars and days of a whole training run"),
    CommandEntry(
        name="train",
        summary="the plan for real, on PyTorch: predicted beside measured",
        reads_recipes=True,
        runs_long=True,
    ),
    CommandEntry(
        name="trace",
        summary="the step of a plan or a module without a GPU: exact memory, collectives, FLOP",
        runs_long=True,
    ),
    CommandEntry(
        name="lab",
        summary="a question about distributed training answered by real runs on this machine",
        runs_long=True,
    ),
    CommandEntry(name="catalog", summary="the GPUs, nodes, networks, prices and models that have a name"),
    CommandEntry(name="profile", summary="where a measured step went, from profiler traces, and what would help"),
    CommandEntry(
        name="calibrate", summary="this machine measured in a minute, for predictions that fit it", runs_long=True
    ),
    CommandEntry(name="reconcile", summary="a run, or another trainer's log, beside its prediction"),
    CommandEntry(name="validate", summary="predictions beside published measurements, with the signed error"),
    CommandEntry(
        name="mcp",
        summary="the commands above as tools of an assistant, with the prompt that says how to plan",
        runs_long=True,
    ),
    CommandEntry(
        name="tokenize", summary="text, JSON Lines or Parquet to tokens on disk, for training", runs_long=True
    ),
)


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are a :class:`UsageError`, never a printed usage and an exit."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of exiting."""
        raise UsageError(message, code="cli-usage", fix=self._next_step(message))

    def format_help(self) -> str:
        """The help page, which is also the text of docs/cli.md."""
        from shardwise.cli.help_page import help_page

        return help_page(self)

    def _next_step(self, message: str) -> str:
        from shardwise.cli.spelling import chosen_instead, near_option, option_of_synonym, option_of_value

        options = {option: action for action in self._actions for option in action.option_strings}
        for word in message.replace(",", " ").split():
            name = word.partition("=")[0].rstrip(":")
            if name in options:
                meant = chosen_instead(message, [str(choice) for choice in options[name].choices or ()])
                return f"write {name} {meant}" if meant else f"correct {name}; `{self.prog} --help` says what it takes"
            chosen = option_of_value(name, message, list(options))
            if chosen:
                return f"write {chosen}"
            known = option_of_synonym(name)
            if known in options:
                return f"write {known} instead of {name}"
            close = near_option(name, list(options))
            if close:
                return f"write {close} instead of {name}"
        return f"run `{self.prog} --help`"


def make_parser(entry: CommandEntry, command: Command) -> Parser:
    """The parser of one command."""
    parser = Parser(
        prog=f"shardwise {entry.name}",
        description=command.__doc__,
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("-h", "--help", action="store_true", help="print this page")
    command.add_arguments(parser)
    return parser


def find_command(name: str) -> CommandEntry:
    """The command called ``name``."""
    entry = next((entry for entry in COMMANDS if entry.name == name), None)
    if entry is not None:
        return entry
    from difflib import get_close_matches

    names = [entry.name for entry in COMMANDS]
    close = get_close_matches(name, names, n=1)
    raise UsageError(
        f"there is no command '{name}'; the commands are {', '.join(names)}",
        code="cli-usage",
        fix=f"run `shardwise {close[0]}`" if close else "run `shardwise --help`",
    )


def run_command(arguments: Sequence[str]) -> int:
    """Run ``arguments[0]`` with the rest and return its exit code."""
    entry = find_command(arguments[0])
    if entry.runs_long:
        gc.enable()
    command = entry.load()
    parser = make_parser(entry, command)
    words = list(arguments[1:])
    if "-h" in words or "--help" in words:
        sys.stdout.write(parser.format_help())
        return EXIT_OK
    typed, words = argparse.Namespace(typed_words=tuple(arguments)), _with_negative_values(words)
    if entry.reads_recipes:
        from shardwise.cli.recipe_file import read_with_recipe

        return command.run(read_with_recipe(lambda: make_parser(entry, command), words, typed))
    return command.run(parser.parse_args(words, typed))


def _with_negative_values(words: Sequence[str]) -> list[str]:
    """``--tokens -1T`` as ``--tokens=-1T``: argparse would take the value for an option and say that none was given."""
    joined: list[str] = []
    for word in words:
        if NEGATIVE_VALUE.match(word) and joined and joined[-1].startswith("--") and len(joined[-1]) > len("--"):
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined
