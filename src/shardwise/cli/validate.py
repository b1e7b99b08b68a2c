"""Predict every published measurement that a plan can repeat, and print the signed error per source family.

The measured runs are shipped with the package, each with its source. No row is left out silently: those that do not
state enough to be repeated are counted, and listed with the reason by --unused.
"""

import argparse

from shardwise.cli.command import EXIT_OK, UsageError
from shardwise.cli.options import add_json_option
from shardwise.cli.output import stdout_style, write_line
from shardwise.cli.progress import waiting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which families, and whether every row is shown."""
    add_json_option(parser)
    parser.add_argument(
        "--family", action="append", default=[], metavar="NAME", help="only this family; may be repeated"
    )
    parser.add_argument("--rows", action="store_true", dest="has_rows", help="print every reading")
    parser.add_argument("--unused", action="store_true", dest="has_unused", help="say why readings are left out")


def run(arguments: argparse.Namespace) -> int:
    """Print the accuracy report."""
    from shardwise.validate.accuracy import memory_accuracy
    from shardwise.validate.measured_runs import measured_runs

    shipped = measured_runs().runs
    unknown = next((name for name in arguments.family if name not in {run.family for run in shipped}), None)
    if unknown is not None:
        families = ", ".join(sorted({run.family for run in shipped}))
        raise UsageError(
            f"there is no family '{unknown}'; there are {families}", code="cli-usage", fix="leave out --family for all"
        )
    chosen = [run for run in shipped if not arguments.family or run.family in arguments.family]
    with waiting("predicting measured runs"):
        report = memory_accuracy(runs=chosen)
    if arguments.is_json:
        from shardwise.render.json_text import json_text
        from shardwise.render.json_validation import validation_object

        write_line(json_text(validation_object(report)))
    else:
        from shardwise.render.text_validation import validation_text

        write_line(
            validation_text(report, has_rows=arguments.has_rows, has_unused=arguments.has_unused, style=stdout_style())
        )
    return EXIT_OK
