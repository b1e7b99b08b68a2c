"""Write a plan as the files of another training tool: torchtitan, Megatron-LM, DeepSpeed or Accelerate.

Each file names data, checkpoints and models by placeholders; the rest is the plan. What is written reads back as the
same plan with `shardwise import`. What the tool cannot say is an error that names the field and the nearest plan that
it can, with what that is predicted to need.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.cli.command import EXIT_OK
from shardwise.cli.options import (
    add_engine_option,
    add_json_option,
    add_launcher_option,
    add_layout_options,
    add_plan_source,
    add_recipe_options,
)
from shardwise.cli.output import OutputError, require_free, write_file, write_line, write_note
from shardwise.cli.plan_source import plan_from

if TYPE_CHECKING:
    from shardwise.exchange.export import InexpressibleError, TextFile
    from shardwise.launch.launchers import LauncherName
    from shardwise.plan import Plan

NAMES = ("torchtitan", "torchtitan-recipe", "megatron", "deepspeed", "accelerate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PLAN, the target and the folder."""
    add_plan_source(parser)
    parser.add_argument("--to", choices=NAMES, required=True, help="the tool that will run it")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write the files there instead of printing them")
    parser.add_argument("--force", action="store_true", dest="is_forced", help="overwrite existing files")
    add_launcher_option(parser)
    add_json_option(parser)
    add_engine_option(parser)
    add_recipe_options(parser)
    add_layout_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print or write the files."""
    from shardwise.exchange.export import TARGETS, InexpressibleError, export_plan, kernel_note, model_note

    plan = plan_from(arguments)
    try:
        files = export_plan(plan, to=arguments.to)
    except InexpressibleError as error:
        raise _with_cost(error) from None
    files = (*files, *_launcher_files(plan, files, arguments.launcher))
    target = TARGETS[arguments.to]
    for note in (kernel_note(plan, target), model_note(plan, target)):
        if note:
            write_note(note)
    folder: Path | None = arguments.out
    if folder is not None:
        _make_folder(folder)
        for file in files:
            require_free(folder.joinpath(file.name), is_forced=arguments.is_forced, example=file.name)
        for file in files:
            write_file(folder.joinpath(file.name), file.text, is_forced=arguments.is_forced, example=file.name)
    if arguments.is_json:
        from shardwise.render.json_text import json_text

        texts = [{"name": file.name, "text": file.text} for file in files]
        answer = {"schema": "shardwise.export/1", "to": target.name, "checked_against": target.checked_against}
        write_line(json_text({**answer, "files": texts}))
    else:
        write_line(f"{target.name}, as of {target.checked_against}")
        for file in files if folder is None else ():
            write_line(f"\n# {file.name}\n{file.text}")
    return EXIT_OK


def _launcher_files(
    plan: "Plan", files: "tuple[TextFile, ...]", launcher: "LauncherName | None"
) -> "tuple[TextFile, ...]":
    """What starts the script of an export, the last of its files, on every node."""
    from shardwise.launch.launchers import launcher_files, start_of

    return launcher_files(start_of(plan, script=files[-1].name, files=files), launcher) if launcher else ()


def _make_folder(folder: Path) -> None:
    """Make the folder of an export beside what there is.

    Raises:
        OutputError: it is a file, or stands in a folder that does not exist or may not be written to.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot make the folder '{folder}': {error.strerror}",
            code="output-path",
            fix="name a folder that is new, inside one that exists",
        ) from None


def _with_cost(error: "InexpressibleError") -> "InexpressibleError":
    """Return the error with the predicted memory and step of the nearest plan added to its fix."""
    from shardwise.exchange.export import InexpressibleError
    from shardwise.predict import predict
    from shardwise.rules import find_errors
    from shardwise.units import format_gib, format_seconds

    if find_errors(error.nearest):
        return error
    prediction = predict(error.nearest)
    memory, step = format_gib(prediction.memory.needed_bytes), format_seconds(prediction.time.step_s)
    needs = f"{memory} on the fullest GPU, {step} a step"
    return InexpressibleError(error.message, code=error.code, fix=f"{error.fix}: {needs}", nearest=error.nearest)
