"""The plan a command is about: a plan file, standard input, or MODEL and CLUSTER with options."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.cli.options import given_layout, given_recipe
from shardwise.errors import UsageError

if TYPE_CHECKING:
    from shardwise.plan import Plan
    from shardwise.plan_file import ReadFile

STANDARD_INPUT = "-"
MAX_LOG_BYTES = 1_000_000
"""An out-of-memory message stands near the end of a log."""
JSONL_SUFFIX = ".jsonl"


def plan_from(arguments: argparse.Namespace, document: "Mapping[str, object] | ReadFile | None" = None) -> "Plan":
    """The plan that PLAN, or MODEL and CLUSTER, and the options describe; options win over the file.

    Args:
        arguments: the parsed command line.
        document: what PLAN holds, where it was read already.
    """
    from shardwise.ask.idle_options import RECIPE_ROWS, require_read
    from shardwise.ask.plans import plan_of

    source = document if document is not None else named_source(arguments.source, arguments.cluster)
    others = [Path(word) for word in arguments.others]
    plan = plan_of(source, arguments.cluster, given_fields(arguments), others=others, **_named_apart(arguments))
    require_read(RECIPE_ROWS, arguments, plan)
    return plan


def is_changed(arguments: argparse.Namespace) -> bool:
    """Whether options say anything of a plan that a file does not."""
    return bool(given_fields(arguments)) or any(_named_apart(arguments).values())


def _named_apart(arguments: argparse.Namespace) -> dict[str, str | None]:
    """The model and the cluster of ``--model`` and ``--cluster``."""
    return {"named_model": arguments.named_model, "named_cluster": arguments.named_cluster}


def plan_words(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The words that were typed in the places of PLAN, CLUSTER and FILE, in their order."""
    words: tuple[str | None, ...] = (arguments.source, arguments.cluster, *arguments.others)
    return tuple(word for word in words if word is not None)


def asked_source(arguments: argparse.Namespace, *, gpu: str | None = None) -> "tuple[Plan | str, str | None]":
    """The subject of a question: a plan, a model beside a cluster or a GPU, or a GPU alone."""
    from shardwise.ask.plans import is_cluster, require_foreign_files

    hardware = arguments.cluster or gpu
    foreign = require_foreign_files(arguments.source, hardware, arguments.others, **_named_apart(arguments))
    is_model = hardware is not None and not foreign
    if is_model or (not foreign and is_cluster(arguments.source)):
        return arguments.source, hardware
    return plan_from(arguments), None


def calibrated_plan_from(arguments: argparse.Namespace) -> "Plan":
    """The plan of the arguments, with the price of ``--price`` and the rates of ``--calibration`` in its cluster."""
    from shardwise.ask.plans import calibrated, priced

    plan = plan_from(arguments, vars(arguments).get("recipe_file"))
    return calibrated(priced(plan, vars(arguments).get("price")), arguments.calibration)


def named_source(source: str, cluster: str | None) -> str | Mapping[str, object]:
    """What PLAN or MODEL names: the word as it is, or the document on standard input for a '-' without a cluster."""
    if source == STANDARD_INPUT and cluster is None:
        return parse_standard_input(standard_input_lines())
    return source


def given_fields(arguments: argparse.Namespace) -> dict[str, object]:
    """The fields of a plan that options set."""
    engine = {"engine": arguments.engine} if vars(arguments).get("engine") else {}
    return {**given_recipe(arguments), **given_layout(arguments), **engine}


def standard_input_lines() -> Iterator[bytes]:
    """The lines of standard input; a person who forgot the pipe is told so.

    Raises:
        UsageError: standard input is a terminal.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "'-' reads a plan from standard input, but nothing is piped into it",
            code="cli-usage",
            fix="pipe a plan file: `shardwise predict - < plan.json`",
        )
    from shardwise.plan_file.text import MAX_PLAN_BYTES

    while line := sys.stdin.buffer.readline(MAX_PLAN_BYTES + 1):
        yield line


def parse_standard_input(lines: Iterable[bytes]) -> Mapping[str, object]:
    """The one plan, in JSON or YAML, that the lines make."""
    from shardwise.plan_file.text import decode_plan, parse_plan_text

    name = "standard input"
    text = decode_plan(b"".join(lines), name=name)
    return parse_plan_text(text, name=name, is_yaml=not text.lstrip().startswith(("{", "[")))


def read_log(path: Path) -> str:
    """The text of a log file, or of standard input, whatever its encoding; the end of a very long one."""
    if str(path) == STANDARD_INPUT:
        content = b"".join(standard_input_lines())
    else:
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - MAX_LOG_BYTES))
                content = file.read(MAX_LOG_BYTES)
        except OSError as error:
            raise UsageError(
                f"cannot read '{path}': {error.strerror}", code="oom-log", fix="give the path of a text file"
            ) from None
    return content[-MAX_LOG_BYTES:].decode("utf-8", errors="replace")
