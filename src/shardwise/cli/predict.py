"""Predict the memory, step time and cost of a plan, or of every plan in a JSONL file.

A PLAN that ends in .jsonl (or several JSON lines on standard input, or any with --jsonl) is answered by one JSON line a
plan, in order. A plan that cannot be used is answered by an error object that names its line, and the exit code is
still 0.

Standard input that holds a single plan, be it one line of JSON, several, or YAML, is answered like a plan file: as
text, or as one JSON document with --json; exit code 3 says that it does not fit, 2 that it cannot be used. A program
that pipes any number of lines, one included, writes --jsonl.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.cli.command import EXIT_DOES_NOT_FIT, EXIT_OK
from shardwise.cli.next_commands import following, typed_command
from shardwise.cli.options import (
    add_calibration_option,
    add_engine_option,
    add_json_option,
    add_layout_options,
    add_plan_source,
    add_recipe_options,
)
from shardwise.cli.output import require_apart, stdout_style, write_file, write_line
from shardwise.cli.plan_source import (
    JSONL_SUFFIX,
    STANDARD_INPUT,
    calibrated_plan_from,
    is_changed,
    parse_standard_input,
    plan_from,
    plan_words,
    standard_input_lines,
)
from shardwise.cli.progress import with_progress
from shardwise.errors import ShardwiseError, UsageError

if TYPE_CHECKING:
    from shardwise.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PLAN, or MODEL and CLUSTER with the options of a recipe and a layout."""
    add_plan_source(parser)
    add_calibration_option(parser)
    add_json_option(parser)
    parser.add_argument(
        "--jsonl", action="store_true", dest="is_jsonl", help="one plan and one JSON answer a line, even for one line"
    )
    parser.add_argument(
        "--exposed",
        action="store_true",
        dest="has_exposed",
        help="say what the step would lose with free communication, by axis and by unit",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the memory picture")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the picture that works offline")
    parser.add_argument("--force", action="store_true", dest="is_forced", help="overwrite existing files")
    add_engine_option(parser)
    add_recipe_options(parser)
    add_layout_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the prediction of one plan, or one line for each of many."""
    written = {"--svg": arguments.svg, "--html": arguments.html}
    require_apart(written, (*plan_words(arguments), arguments.calibration))
    if arguments.cluster is not None:
        if arguments.is_jsonl:
            raise UsageError("--jsonl reads plans, one a line, not a MODEL", code="cli-usage", fix="write --json")
        return _answer(calibrated_plan_from(arguments), arguments)
    if arguments.source == STANDARD_INPUT:
        return _answer_standard_input(arguments)
    if arguments.is_jsonl or arguments.source.endswith(JSONL_SUFFIX):
        from shardwise.plan_file.read import read_numbered_plans

        return _answer_lines(read_numbered_plans(arguments.source), arguments)
    return _answer(calibrated_plan_from(arguments), arguments)


def _answer_standard_input(arguments: argparse.Namespace) -> int:
    """One plan, or many where the first line is a whole one and more follow."""
    lines = standard_input_lines()
    ahead, num_texts = [], 0
    for line in () if arguments.is_jsonl else lines:
        ahead.append(line)
        num_texts += bool(line.strip())
        if num_texts == 2 or (line.strip() and not _is_object(line)):
            break
    if arguments.is_jsonl or num_texts == 2:
        from shardwise.plan_file.read import numbered_plan_lines

        return _answer_lines(numbered_plan_lines(_whole_lines(chain(ahead, lines))), arguments)
    from shardwise.ask.plans import calibrated

    plan = plan_from(arguments, parse_standard_input(chain(ahead, lines)))
    return _answer(calibrated(plan, arguments.calibration), arguments)


def _whole_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """One piece a line: a line longer than a plan can be comes in several, of which the first is refused for all."""
    is_start = True
    for piece in pieces:
        if is_start:
            yield piece
        is_start = piece.endswith(b"\n")


def _is_object(line: bytes) -> bool:
    """Whether a line is a whole JSON object, so that what follows it is another plan."""
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _answer(plan: "Plan", arguments: argparse.Namespace) -> int:
    """One prediction; exit code 3 when the plan does not fit."""
    from shardwise.ask.idle_options import ANSWER_ROWS, require_read
    from shardwise.ask.plans import checked_prediction
    from shardwise.predict import exposed_communication

    require_read(ANSWER_ROWS, arguments, plan)
    prediction = checked_prediction(plan)
    exposed = exposed_communication(plan) if arguments.has_exposed else None
    if arguments.svg is not None:
        from shardwise.render.svg_memory import memory_svg

        write_file(
            arguments.svg,
            memory_svg(prediction.memory, title=plan.model.name),
            is_forced=arguments.is_forced,
            example="picture.svg",
        )
    if arguments.html is not None:
        from shardwise.render.html_prediction import prediction_html

        page = prediction_html(plan=plan, prediction=prediction)
        write_file(arguments.html, page, is_forced=arguments.is_forced, example="page.html")
    if arguments.is_json:
        from shardwise.render.json_records import prediction_object
        from shardwise.render.json_text import json_text

        write_line(json_text(prediction_object(plan=plan, prediction=prediction, exposed=exposed)))
    else:
        from shardwise.cli.plan_answer import assumed_fields
        from shardwise.render.text_prediction import prediction_text

        assumed, command = assumed_fields(arguments, plan), _typed_command(arguments)
        explained, drawn = (command.replace(" predict ", f" {name} ", 1) for name in ("explain", "timeline"))
        ready = explained, f"{drawn} --html step.html"
        text = prediction_text(
            plan=plan,
            prediction=prediction,
            exposed=exposed,
            following=following(command, plan, prediction, assumed, ready=ready),
            assumed=assumed,
            style=stdout_style(),
        )
        write_line(text)
    return EXIT_OK if prediction.fits else EXIT_DOES_NOT_FIT


def _typed_command(arguments: argparse.Namespace) -> str:
    """The command as it was typed; empty where standard input or a file to write is part of it."""
    if arguments.source == STANDARD_INPUT or arguments.svg or arguments.html or arguments.has_exposed:
        return ""
    return typed_command(arguments)


def _answer_lines(plans: "Iterable[tuple[int, Plan | ShardwiseError]]", arguments: argparse.Namespace) -> int:
    """One JSON object a line, in the order of the plans."""
    if is_changed(arguments) or arguments.svg or arguments.html:
        raise UsageError(
            "options of a recipe, a layout or a picture do not go with many plans at once",
            code="cli-usage",
            fix="write them into the plans, or predict one plan",
        )
    from shardwise.ask.plans import calibrated
    from shardwise.render.json_text import json_line

    for number, read in with_progress(plans, label="predicting"):
        plan = read if isinstance(read, ShardwiseError) else calibrated(read, arguments.calibration)
        sys.stdout.write(json_line(line_object(plan, line_number=number, has_exposed=arguments.has_exposed)) + "\n")
    return EXIT_OK


def line_object(plan: "Plan | ShardwiseError", *, line_number: int, has_exposed: bool = False) -> dict[str, object]:
    """The answer to one line of a JSONL file; an error says which line it is about."""
    from shardwise.ask.plans import checked_prediction
    from shardwise.predict import exposed_communication
    from shardwise.render.errors import error_object
    from shardwise.render.json_records import prediction_object

    try:
        if isinstance(plan, ShardwiseError):
            raise plan
        prediction = checked_prediction(plan)
        exposed = exposed_communication(plan) if has_exposed else None
        return prediction_object(plan=plan, prediction=prediction, exposed=exposed)
    except ShardwiseError as error:
        return {**error_object(message=error.message, code=error.code, fix=error.fix), "line": line_number}
