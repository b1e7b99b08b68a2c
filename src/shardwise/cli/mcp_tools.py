"""The tools of `shardwise mcp`: each is a command of the table, with its options as a JSON Schema.

A call becomes the words of a command line with ``--json``, so that an assistant and a person get the same numbers and
the same errors. A plan or a file may also be given as it is: it then stands in a folder that ends with the call.
"""

import argparse
import io
import json
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from shardwise.cli.command import EXIT_DOES_NOT_FIT, EXIT_OK, find_command, make_parser
from shardwise.cli.main import main
from shardwise.cli.options import OrNull, amount, finite_number, positive_number, whole_number
from shardwise.errors import UsageError
from shardwise.fields import NULL

JsonObject: TypeAlias = dict[str, object]
NOT_ASKED = frozenset(
    (
        *("help", "is_json", "is_jsonl", "is_forced", "html", "svg", "is_stepped", "has_details", "is_full", "last"),
        *("has_timings", "calibration", "named_model", "named_cluster", "others"),
    )
)
"""Options for a terminal, for pages, for overwriting files, and for what `import` does, which no tool has."""
LONG_PARTS = ("memory.stages", "time.communication")
"""Parts of a prediction that no first screen shows."""
IN_FILES = ("source", "plan", "files", "runs", "record", "oom_log")
"""Arguments that name files, and that also take a plan or a text as it is."""
WHOLE = (int, whole_number, positive_number)
NUMBER = (float, amount, finite_number)
FILE_SCHEMA: JsonObject = {
    "anyOf": [{"type": "string"}, {"type": "object"}],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEntry:
    """A command that an assistant may call."""

    name: str
    description: str
    has_fields: bool = True
    """Whether every field of a recipe and a layout is an argument; else a plan as an object says them."""
    without: tuple[str, ...] = ()
    """Parts of the JSON answer that are left out, as ``key.key``; a list on the way means each of its elements."""

    @property
    def writes(self) -> bool:
        """Whether the command has an option that writes a file, and writes one only when that is given."""
        return "out" in _asked(self)

    @property
    def parser(self) -> argparse.ArgumentParser:
        """The parser of the command."""
        entry = find_command(self.name)
        return make_parser(entry, entry.load())


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswer:
    """An answer of a tool, or an error with its fix."""

    content: JsonObject
    is_error: bool


TOOLS = (
    ToolEntry(
        name="plan",
        description="Recommend a layout of a model on a cluster, or with gpus a cluster: memory, step time, why, and "
        "what would change it. recommended.plan is the source of predict, explain, judge, export and cost.",
        without=(
            *("plans", "pareto", "space", "left_out", "what_if.changes.plan", "closest.reliefs.plan", "changes.plan"),
            *(f"clusters.best.{part}" for part in ("plan", "prediction.parameters", "prediction.throughput")),
            *(f"clusters.best.prediction.{part}" for part in ("memory", "time.components_s", "time.communication")),
            *(f"{part}.prediction.{long}" for part in ("closest", "recommended") for long in LONG_PARTS),
        ),
    ),
    ToolEntry(
        name="predict",
        description="Memory of the fullest GPU, step time with its band, MFU and cost of one plan. Arguments beside "
        "the plan change its fields.",
        without=LONG_PARTS,
    ),
    ToolEntry(
        name="explain",
        description="Why a plan fits or not, what dominates its memory and time, and changes, each predicted; "
        "or, with oom, which tensor an out-of-memory error was about.",
        has_fields=False,
        without=(
            *(f"prediction.{part}" for part in LONG_PARTS),
            *("plan", "changes.plan", "findings.numbers"),
        ),
    ),
    ToolEntry(
        name="judge",
        description="Whether a reported rate of a plan's run is good, and what would explain it. Give one figure.",
        has_fields=False,
    ),
    ToolEntry(
        name="import",
        description="What files of another training tool mean: DeepSpeed, Accelerate, TRL, axolotl, LLaMA-Factory, "
        "torchtitan, Megatron, NeMo, GPT-NeoX, nanotron, launch scripts. What is known, open, contradictory, wrong, "
        "and the plan once nothing is open.",
    ),
    ToolEntry(
        name="export",
        description="A plan as the files of torchtitan, Megatron-LM, DeepSpeed or Accelerate, as text.",
        has_fields=False,
    ),
    ToolEntry(name="cost", description="GPU-hours, dollars, days and energy of a whole training run."),
    ToolEntry(
        name="simulate",
        description="One strategy simulated with numbers that can be checked by hand, such as ring or pipeline.",
        without=("lessons.steps", "lessons.pictures"),
    ),
    ToolEntry(
        name="reconcile", description="A finished run, or another trainer's log with its plan, beside its prediction."
    ),
)


def tools_object() -> JsonObject:
    """Every tool with its description and the JSON Schema of its arguments."""
    rows = [{"name": tool.name, "description": tool.description, "input_schema": input_schema(tool)} for tool in TOOLS]
    return {"schema": "shardwise.tools/1", "tools": rows}


def input_schema(tool: ToolEntry) -> JsonObject:
    """The JSON Schema of a tool's arguments, made from the options of its command."""
    asked = _asked(tool)
    return {
        "type": "object",
        "properties": {name: _schema(name, action) for name, action in asked.items()},
        "required": [name for name, action in asked.items() if action.required],
        "additionalProperties": False,
    }


def _asked(tool: ToolEntry) -> dict[str, argparse.Action]:
    """The options of the command that the tool has as arguments, by name."""
    hidden = () if tool.has_fields else ("recipe", "layout")
    return {
        _name(action): action
        for group in tool.parser._action_groups  # argparse lists its options nowhere else
        for action in group._group_actions
        if group.title not in hidden and action.dest not in NOT_ASKED
    }


def _name(action: argparse.Action) -> str:
    """The name of an argument: that of the option with underscores, that of the position without one."""
    option = next((option for option in action.option_strings if option.startswith("--")), "")
    return option.removeprefix("--").replace("-", "_") or action.dest


def _schema(name: str, action: argparse.Action) -> JsonObject:
    value = FILE_SCHEMA if name in IN_FILES else _value_schema(action)
    shown: JsonObject = {"type": "array", "items": value} if _is_many(action) else value
    help_text = f"{action.help}{'; or the plan as an object, or {name, text}' if name in IN_FILES else ''}"
    return {**shown, "description": help_text}


def _is_many(action: argparse.Action) -> bool:
    """Whether an argument is a list: of files, or of what an option that may be repeated takes."""
    return action.nargs in ("+", "*") or isinstance(action.default, list)


def _value_schema(action: argparse.Action) -> JsonObject:
    if _is_switch(action):
        return {"type": "boolean"}
    if action.choices is not None:
        return {"enum": [None if choice == NULL else choice for choice in action.choices]}
    read = action.type.read if isinstance(action.type, OrNull) else action.type
    kinds = ["integer"] if read in WHOLE else ["number"] if read in NUMBER else ["string", "number"]
    kinds += ["null"] if _takes_null(action) else []
    return {"type": kinds if len(kinds) > 1 else kinds[0]}


def _takes_null(action: argparse.Action) -> bool:
    """Whether a value of a plan may be taken back; any other argument that is null is one that is not given."""
    return isinstance(action.type, OrNull) or NULL in (action.choices or ())


def call_tool(name: str, arguments: Mapping[str, object]) -> ToolAnswer:
    """Run a command with these arguments; every error is an answer with its code and its fix."""
    tool = next((tool for tool in TOOLS if tool.name == name), None)
    if tool is None:
        names = ", ".join(tool.name for tool in TOOLS)
        return _refused(f"there is no tool '{name[:40]}'", fix=f"call one of {names}")
    with TemporaryDirectory() as folder:
        try:
            words = [name, "--json", *_words(tool, arguments, Path(folder))]
        except UsageError as error:
            return _refused(error.message, fix=error.fix)
        exit_code, text = _run(words)
        shown = text.replace(f"{folder}/", "").replace(folder, "")
    content = json.loads(shown)
    is_error = exit_code not in (EXIT_OK, EXIT_DOES_NOT_FIT)
    return ToolAnswer(content=content if is_error else _shortened(content, tool.without), is_error=is_error)


def _refused(message: str, *, fix: str) -> ToolAnswer:
    return ToolAnswer(content={"ok": False, "error": message, "code": "cli-usage", "fix": fix}, is_error=True)


def _run(words: Sequence[str]) -> tuple[int, str]:
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        exit_code = main(words)
    return exit_code, printed.getvalue()


def _words(tool: ToolEntry, arguments: Mapping[str, object], folder: Path) -> list[str]:
    """The arguments as a command line: options first, and after ``--`` what has a position."""
    asked = _asked(tool)
    unknown = next((name for name in arguments if name not in asked), None)
    if unknown is not None:
        close = get_close_matches(unknown, asked, n=3) or list(asked)
        raise UsageError(
            f"{tool.name} has no argument '{unknown[:40]}'", code="cli-usage", fix=f"use {' or '.join(close)}"
        )
    options: list[str] = []
    placed: list[str] = []
    for name, action in asked.items():
        value = arguments.get(name)
        if name not in arguments or (value is None and not _takes_null(action)):
            continue
        if _is_switch(action):
            options.extend(_switch(action, is_on=bool(value)))
            continue
        words = [_word(one, folder) for one in (value if isinstance(value, list) and _is_many(action) else [value])]
        placed.extend(() if action.option_strings else words)
        options.extend(f"{action.option_strings[0]}={word}" for word in words if action.option_strings)
    return [*options, *(["--"] if placed else []), *placed]


def _is_switch(action: argparse.Action) -> bool:
    return action.nargs == 0


def _switch(action: argparse.Action, *, is_on: bool) -> tuple[str, ...]:
    off = next((option for option in action.option_strings if option.startswith("--no-")), None)
    return (action.option_strings[0],) if is_on else (off,) if off is not None else ()


def _word(value: object, folder: Path) -> str:
    """A value as a word; what stands for a file is written into the folder, and its path is the word."""
    if isinstance(value, list):
        return ",".join(str(one) for one in value)
    if not isinstance(value, dict):
        return NULL if value is None else str(value)
    is_text = set(value) == {"name", "text"}
    name = Path(str(value["name"])).name if is_text else "plan.json"
    path = folder.joinpath(name or "file")
    path.write_text(str(value["text"]) if is_text else json.dumps(value), encoding="utf-8")
    return str(path)


def _shortened(content: JsonObject, paths: Sequence[str]) -> JsonObject:
    for path in paths:
        _leave_out(content, path.split("."))
    return content


def _leave_out(content: object, keys: Sequence[str]) -> None:
    if isinstance(content, list):
        for element in content:
            _leave_out(element, keys)
    elif isinstance(content, dict) and len(keys) == 1:
        content.pop(keys[0], None)
    elif isinstance(content, dict):
        _leave_out(content.get(keys[0]), keys[1:])
