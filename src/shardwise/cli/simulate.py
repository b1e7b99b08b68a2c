"""Simulate a strategy and show its numbers, step by step if asked: a lesson that can be checked by hand.

NAME is one of the simulations listed below, or all of them. --step walks through one message or one pass after the
other: on a terminal it waits for Enter, in a pipe it prints every step. --html writes one page with tables and pictures
that works offline, --svg the pictures alone. Everything printed and drawn comes out of the simulation.
"""

import argparse
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.cli.command import EXIT_OK
from shardwise.cli.main import EXIT_FAILED
from shardwise.cli.options import (
    CLUSTER_HELP,
    LENGTH_HELP,
    MODEL_HELP,
    add_json_option,
    amount,
    byte_size,
    sequence_length,
    whole_number,
)
from shardwise.cli.output import require_apart, require_free, stdout_style, write_file, write_line
from shardwise.schedules.table import SCHEDULES

if TYPE_CHECKING:
    from shardwise.course.lesson import Lesson
    from shardwise.course.lessons import LessonRequest

QUIT = "q"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """NAME, files, and every field of a lesson's request."""
    from shardwise.course.lessons import LESSONS

    names = ", ".join(f"{entry.name} ({entry.summary})" for entry in LESSONS)
    parser.add_argument("name", metavar="NAME", help=f"{names}; or all")
    add_json_option(parser)
    parser.add_argument("--step", action="store_true", dest="is_stepped", help="walk through the simulation")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page that works offline")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write the pictures")
    parser.add_argument("--force", action="store_true", dest="is_forced", help="overwrite existing files")
    _add_sizes(parser)
    _add_model_options(parser)


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    sizes = parser.add_argument_group("sizes (each simulation takes some of them and has defaults)")
    for name, meaning in (
        ("num-ranks", "simulated ranks"),
        ("ranks-per-node", "ranks that share a node"),
        ("pp", "pipeline stages"),
        ("vpp", "model chunks of each pipeline stage"),
        ("num-microbatches", "micro-batches of one step"),
        ("zero-stage", "what ZeRO divides: 0 (nothing), 1, 2 or 3"),
        ("seed", "of the random numbers"),
    ):
        sizes.add_argument(f"--{name}", type=whole_number, metavar="N", help=meaning)
    sizes.add_argument("--schedule", choices=SCHEDULES, help="the pipeline schedule to look at")
    sizes.add_argument("--payload-bytes", type=byte_size, metavar="SIZE", help="of a collective, such as 64MiB")
    sizes.add_argument("--latency-s", type=amount, metavar="S", help="seconds one message takes whatever its size")
    sizes.add_argument("--bandwidth-bytes-per-s", type=amount, metavar="RATE", help="of a link, one direction")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model")
    model.add_argument("--model", metavar="MODEL", help=MODEL_HELP)
    model.add_argument("--cluster", metavar="CLUSTER", help=CLUSTER_HELP)
    model.add_argument("--seq-len", type=sequence_length, metavar="N", help=f"tokens of a sequence; {LENGTH_HELP}")
    for name, meaning in (
        ("num-hidden-layers", "layers"),
        ("hidden-size", "width of the model"),
        ("micro-batch-size", "sequences one rank runs at once"),
        ("global-batch-size", "sequences of one optimizer step"),
        ("num-attention-heads", "query heads"),
        ("num-key-value-heads", "key and value heads"),
        ("num-experts", "experts of a layer"),
        ("num-experts-per-tok", "experts that see each token"),
    ):
        model.add_argument(f"--{name}", type=whole_number, metavar="N", help=meaning)


def run(arguments: argparse.Namespace) -> int:
    """Simulate, write the files that were asked for, and print or walk."""
    for path, example in ((arguments.html, "page.html"), (arguments.svg, "picture.svg")):
        if path is not None:
            require_free(path, is_forced=arguments.is_forced, example=example)
    require_apart({"--html": arguments.html, "--svg": arguments.svg}, (arguments.model, arguments.cluster))
    from shardwise.course.lessons import make_lessons

    lessons = make_lessons(arguments.name, _request(arguments))
    _write_files(lessons, arguments)
    if arguments.is_json:
        from shardwise.course.render.json_lesson import lessons_object
        from shardwise.render.json_text import json_text

        write_line(json_text(lessons_object(lessons)))
    elif arguments.is_stepped:
        _walk(lessons)
    else:
        from shardwise.course.render.text_lesson import lessons_text

        write_line(lessons_text(lessons, style=stdout_style()))
    has_passed = all(check.holds for lesson in lessons for check in lesson.checks)
    return EXIT_OK if has_passed else EXIT_FAILED


def _request(arguments: argparse.Namespace) -> "LessonRequest":
    from shardwise.course.lessons import LessonRequest

    return LessonRequest(**{field.name: getattr(arguments, field.name) for field in fields(LessonRequest)})


def _walk(lessons: "tuple[Lesson, ...]") -> None:
    """One step after the other; on a terminal the reader says when to go on."""
    from shardwise.course.render.text_lesson import lesson_heading_text, step_texts

    is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
    style = stdout_style()
    for lesson in lessons:
        write_line(lesson_heading_text(lesson, style=style))
        for text in step_texts(lesson, style=style):
            write_line(text)
            if is_interactive and _wants_to_stop():
                return


def _wants_to_stop() -> bool:
    sys.stdout.write("Enter for the next step, q to stop: ")
    sys.stdout.flush()
    answer = sys.stdin.readline()
    return not answer or answer.strip().lower() == QUIT


def _write_files(lessons: "tuple[Lesson, ...]", arguments: argparse.Namespace) -> None:
    if arguments.html is not None:
        from shardwise.course.render.html_lesson import lessons_html

        write_file(arguments.html, lessons_html(lessons), is_forced=arguments.is_forced, example="page.html")
    if arguments.svg is not None:
        from shardwise.course.render.svg_lesson import lessons_svg

        write_file(arguments.svg, lessons_svg(lessons), is_forced=arguments.is_forced, example="picture.svg")
