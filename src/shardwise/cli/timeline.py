"""Draw the predicted step of a plan: what runs when on which stream of representative ranks.

--out writes trace events for Perfetto (ui.perfetto.dev) or Chrome's tracing page, with one process per drawn rank, one
thread per stream and arrows for messages between stages; --html a page that zooms and works offline; --svg a picture.
Without a file the summary alone is printed. Everything drawn is simulated, and says so.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.cli.command import EXIT_OK
from shardwise.cli.next_commands import following, typed_command
from shardwise.cli.options import (
    add_calibration_option,
    add_engine_option,
    add_json_option,
    add_layout_options,
    add_plan_source,
    add_recipe_options,
)
from shardwise.cli.output import require_apart, require_free, stdout_style, write_file, write_line
from shardwise.cli.plan_source import calibrated_plan_from, plan_words

if TYPE_CHECKING:
    from shardwise.plan import Plan
    from shardwise.predict.timeline import StepTimeline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PLAN, or MODEL and CLUSTER with the options of a recipe and a layout."""
    add_plan_source(parser)
    add_calibration_option(parser)
    add_json_option(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write trace events for Perfetto, such as step.json")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page that zooms and works offline")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="write a picture")
    parser.add_argument("--force", action="store_true", dest="is_forced", help="overwrite existing files")
    add_engine_option(parser)
    add_recipe_options(parser)
    add_layout_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the files that were asked for, and print the summary or the trace."""
    files = {"timeline.json": arguments.out, "page.html": arguments.html, "picture.svg": arguments.svg}
    for example, path in files.items():
        if path is not None:
            require_free(path, is_forced=arguments.is_forced, example=example)
    written = {"--out": arguments.out, "--html": arguments.html, "--svg": arguments.svg}
    require_apart(written, (*plan_words(arguments), arguments.calibration))
    plan = calibrated_plan_from(arguments)
    timeline = _timeline(plan)
    _write_files(plan, timeline, arguments)
    if arguments.is_json:
        from shardwise.render.json_text import json_line
        from shardwise.render.json_trace import trace_object

        write_line(json_line(trace_object(plan=plan, timeline=timeline)))
    else:
        from shardwise.ask.plans import checked_prediction
        from shardwise.cli.plan_answer import assumed_fields
        from shardwise.predict import exposed_communication
        from shardwise.render.text_timeline import timeline_text

        exposed, prediction = exposed_communication(plan), checked_prediction(plan)
        assumed = assumed_fields(arguments, plan)
        command = "" if any(files.values()) else typed_command(arguments)
        text = timeline_text(
            plan=plan,
            timeline=timeline,
            prediction=prediction,
            exposed=exposed,
            following=following(command, plan, prediction, assumed, ready=(f"{command} --html step.html",)),
            assumed=assumed,
            style=stdout_style(),
        )
        write_line(text)
    return EXIT_OK


def _timeline(plan: "Plan") -> "StepTimeline":
    from shardwise.predict.timeline import predict_timeline
    from shardwise.rules import require_valid

    require_valid(plan)
    return predict_timeline(plan)


def _write_files(plan: "Plan", timeline: "StepTimeline", arguments: argparse.Namespace) -> None:
    if arguments.out is not None:
        from shardwise.render.json_text import json_line
        from shardwise.render.json_trace import trace_object

        trace = json_line(trace_object(plan=plan, timeline=timeline))
        write_file(arguments.out, trace, is_forced=arguments.is_forced, example="timeline.json")
    if arguments.html is not None:
        from shardwise.render.html_timeline import timeline_html

        write_file(
            arguments.html,
            timeline_html(plan=plan, timeline=timeline),
            is_forced=arguments.is_forced,
            example="page.html",
        )
    if arguments.svg is not None:
        from shardwise.render.svg_timeline import timeline_svg

        picture = timeline_svg(timeline, title=plan.model.name)
        write_file(arguments.svg, picture, is_forced=arguments.is_forced, example="picture.svg")
