"""Predict every published measurement that a plan can repeat, and print the signed error per source family.

The measured runs are shipped with the package, each with its source. No row is left out silently: those that do not
state enough to be repeated are counted, and listed with the reason by --unused.
"""

import argparse
from collections.abc import Collection
from pathlib import Path

from shardwise.cli.command import EXIT_OK
from shardwise.cli.options import add_json_option
from shardwise.cli.output import require_free, stdout_style, write_file, write_line
from shardwise.cli.progress import waiting
from shardwise.errors import UsageError

QUANTITIES = ("memory", "time", "cost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which quantity and families, and whether every row is shown."""
    add_json_option(parser)
    parser.add_argument(
        "--quantity",
        choices=QUANTITIES,
        default="memory",
        help="peak memory (the default), time of a step, or costs of whole runs",
    )
    parser.add_argument(
        "--time", action="store_const", const="time", dest="quantity", help="the same as --quantity time"
    )
    parser.add_argument(
        "--family", action="append", default=[], metavar="NAME", help="only this family; may be repeated"
    )
    parser.add_argument("--rows", action="store_true", dest="has_rows", help="print every reading")
    parser.add_argument("--unused", action="store_true", dest="has_unused", help="say why readings are left out")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with the scatter plot, works offline")
    parser.add_argument("--force", action="store_true", dest="is_forced", help="overwrite an existing file")


def run(arguments: argparse.Namespace) -> int:
    """Print the accuracy report, and write its page when asked."""
    if arguments.html is not None:
        require_free(arguments.html, is_forced=arguments.is_forced, example="page.html")
    answers = {"memory": _memory_answer, "time": _time_answer, "cost": _cost_answer}
    text, page = answers[arguments.quantity](arguments)
    write_line(text)
    if arguments.html is not None:
        write_file(arguments.html, page, is_forced=arguments.is_forced, example="page.html")
    return EXIT_OK


def _memory_answer(arguments: argparse.Namespace) -> tuple[str, str]:
    """What is printed about memory, and the page; the page is empty unless it is wanted."""
    from shardwise.validate.accuracy import memory_accuracy
    from shardwise.validate.shipped_runs import measured_runs

    shipped = measured_runs().runs
    _require_known(arguments.family, {run.family for run in shipped})
    chosen = [run for run in shipped if not arguments.family or run.family in arguments.family]
    with waiting("predicting measured runs"):
        report = memory_accuracy(runs=chosen)
    page = ""
    if arguments.html is not None:
        from shardwise.render.html_validation import memory_validation_html

        page = memory_validation_html(report)
    if arguments.is_json:
        from shardwise.render.json_answers import validation_object
        from shardwise.render.json_text import json_text

        return json_text(validation_object(report)), page
    from shardwise.render.text_validation import validation_text

    text = validation_text(report, has_rows=arguments.has_rows, has_unused=arguments.has_unused, style=stdout_style())
    return text, page


def _time_answer(arguments: argparse.Namespace) -> tuple[str, str]:
    """What is printed about step times, and the page; the page is empty unless it is wanted."""
    from shardwise.validate.shipped_runs import timed_runs
    from shardwise.validate.time_accuracy import time_accuracy

    shipped = timed_runs().runs
    _require_known(arguments.family, {run.family for run in shipped})
    chosen = [run for run in shipped if not arguments.family or run.family in arguments.family]
    with waiting("predicting measured rates"):
        report = time_accuracy(runs=chosen)
    page = ""
    if arguments.html is not None:
        from shardwise.render.html_validation import time_validation_html

        page = time_validation_html(report)
    if arguments.is_json:
        from shardwise.render.json_answers import validation_object
        from shardwise.render.json_text import json_text

        return json_text(validation_object(report)), page
    from shardwise.render.text_time_validation import time_validation_text

    text = time_validation_text(
        report, has_rows=arguments.has_rows, has_unused=arguments.has_unused, style=stdout_style()
    )
    return text, page


def _cost_answer(arguments: argparse.Namespace) -> tuple[str, str]:
    """The text about costs of whole runs, and the HTML page, which is empty unless ``--html`` asks for it."""
    from shardwise.validate.run_costs import run_costs

    if arguments.family:
        raise UsageError("bills have no families; all are one table", code="cli-usage", fix="leave out --family")
    report = run_costs()
    page = ""
    if arguments.html is not None:
        from shardwise.render.html_validation import cost_validation_html

        page = cost_validation_html(report)
    if arguments.is_json:
        from shardwise.render.json_answers import validation_object
        from shardwise.render.json_text import json_text

        return json_text(validation_object(report)), page
    from shardwise.render.text_run_costs import run_costs_text

    return run_costs_text(report, has_unused=arguments.has_unused, style=stdout_style()), page


def _require_known(asked: Collection[str], known: Collection[str]) -> None:
    unknown = next((name for name in asked if name not in known), None)
    if unknown is not None:
        families = ", ".join(sorted(known))
        raise UsageError(
            f"there is no family '{unknown}'; there are {families}", code="cli-usage", fix="leave out --family for all"
        )
