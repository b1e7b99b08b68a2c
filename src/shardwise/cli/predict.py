"""Predict the memory, step time and cost of a plan, or of every plan in a JSONL file.

A PLAN that ends in .jsonl (or several JSON lines on standard input) is answered by one JSON line a plan, in order; a
plan that cannot be used is answered by an error object on its line, and the exit code is still 0.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from shardwise.cli.command import EXIT_DOES_NOT_FIT, EXIT_OK
from shardwise.cli.options import (
    add_engine_option,
    add_json_option,
    add_layout_options,
    add_plan_source,
    add_recipe_options,
)
from shardwise.cli.output import stdout_style, write_line
from shardwise.cli.plan_source import plan_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PLAN, or MODEL and CLUSTER with the options of a recipe and a layout."""
    add_plan_source(parser)
    add_json_option(parser)
    add_engine_option(parser)
    add_recipe_options(parser)
    add_layout_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print the prediction; exit code 3 when the plan does not fit."""
    from shardwise.predict import predict

    plan = plan_from(arguments)
    prediction = predict(plan)
    if arguments.is_json:
        from shardwise.render.json_prediction import prediction_object
        from shardwise.render.json_text import json_text

        write_line(json_text(prediction_object(model=plan.model, prediction=prediction)))
    else:
        from shardwise.render.text_prediction import prediction_text

        write_line(prediction_text(plan=plan, prediction=prediction, style=stdout_style()))
    return EXIT_OK if prediction.fits else EXIT_DOES_NOT_FIT
