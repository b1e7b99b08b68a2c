"""Measure this machine in a minute: kernels, links, host and disk, for predictions that fit it.

Matrix products, attention, elementwise kernels, the optimizer, host copies, every collective over sizes and groups (all
ranks, halves, pairs), blocks of the decoder, launches and a disk are timed by as many processes as train here. The file
is for --calibration of plan, predict, timeline, train and reconcile. Nothing is written before everything is measured.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import get_args

from shardwise.calibration import MeasuredDevice
from shardwise.cli.command import EXIT_OK
from shardwise.cli.options import add_json_option, amount, positive_number
from shardwise.cli.output import require_free, write_file, write_line
from shardwise.errors import UsageError

SHORTEST_S = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to write, and with how many processes of what."""
    parser.add_argument("--out", type=Path, metavar="FILE", help="(default: calibration-HOST-DATE.json)")
    parser.add_argument("--device", choices=get_args(MeasuredDevice), help="(default: cuda where there are GPUs)")
    parser.add_argument(
        "--processes", type=positive_number, metavar="N", help="(default: one for every GPU, or two on CPUs)"
    )
    parser.add_argument(
        "--seconds", type=amount, default=60.0, metavar="S", help="how long it may take, start included (default: 60)"
    )
    parser.add_argument("--force", action="store_true", dest="is_forced", help="overwrite an existing file")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, write the file, and say what was found."""
    from shardwise.calibration_file import calibration_object
    from shardwise.cli.progress import share_bar
    from shardwise.launch.calibrate import CalibrationRequest, calibrate, usual_device, usual_processes
    from shardwise.launch.folder import calibration_path
    from shardwise.render.json_text import json_text
    from shardwise.render.text_calibration import calibration_text

    if arguments.seconds < SHORTEST_S:
        raise UsageError(
            f"{arguments.seconds:g} s are too few: processes take half of that to start",
            code="cli-usage",
            fix=f"give --seconds {SHORTEST_S:g} or more",
        )
    path = arguments.out or calibration_path()
    require_free(path, is_forced=arguments.is_forced, example="calibration.json")
    device = arguments.device or usual_device()
    request = CalibrationRequest(
        device=device,
        num_processes=arguments.processes or usual_processes(device),
        limit_s=arguments.seconds,
        command=shlex.join(["shardwise", *sys.argv[1:]]),
    )
    with share_bar() as on_progress:
        found = calibrate(request, on_progress=on_progress)
    document = json_text(calibration_object(found))
    write_file(path, document, is_forced=arguments.is_forced, example="calibration.json")
    write_line(document if arguments.is_json else calibration_text(found))
    return EXIT_OK
