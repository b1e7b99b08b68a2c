"""Read PyTorch profiler traces of one rank or many, and memory snapshots: where time and memory went, what would help.

Files are those of export_chrome_trace or tensorboard_trace_handler, plain or gzip, of NCCL, RCCL or gloo. Collectives
are matched across the given ranks, which splits their time into waiting for others and transfer. A file that is cut
off or damaged is read as far as it goes, and the report says so. Snapshots are what torch.cuda.memory._dump_snapshot
wrote.

A run folder of ours names its plan, --plan another trainer's: then the knobs that the findings name are turned in it,
predicted again, and their gain stands beside the bound that the trace gives; and the MFU of the step is stated.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.cli.command import EXIT_OK
from shardwise.cli.options import add_calibration_option, add_json_option
from shardwise.cli.output import require_free, stdout_style, write_file, write_line
from shardwise.cli.progress import waiting
from shardwise.errors import UsageError

if TYPE_CHECKING:
    from shardwise.measure.memory_profile import MemoryProfile
    from shardwise.measure.profile_records import TraceProfile
    from shardwise.reconcile.planned_profile import PlannedProfile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The traces, and how much of the report is wanted."""
    parser.add_argument(
        "traces", nargs="+", type=Path, metavar="TRACE", help="a trace, a memory snapshot, a folder of them, or a run"
    )
    add_json_option(parser)
    parser.add_argument(
        "--plan", type=Path, metavar="PLAN", help="what was run: knobs are predicted with it (default: the run's)"
    )
    add_calibration_option(parser)
    parser.add_argument("--units", action="store_true", dest="has_units", help="list every FSDP unit")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with pictures that works offline")
    parser.add_argument("--force", action="store_true", dest="is_forced", help="overwrite an existing file")


def run(arguments: argparse.Namespace) -> int:
    """Print the reports."""
    from shardwise.measure.memory_profile import profile_memory
    from shardwise.measure.memory_snapshot import is_memory_snapshot
    from shardwise.measure.profile import profile_traces
    from shardwise.measure.trace_files import trace_files

    if arguments.html is not None:
        require_free(arguments.html, is_forced=arguments.is_forced, example="page.html")
    paths = trace_files(arguments.traces)
    snapshots = [path for path in paths if is_memory_snapshot(path)]
    traces = [path for path in paths if path not in snapshots]
    with waiting(f"reading {len(paths)} files" if len(paths) > 1 else f"reading {paths[0].name}"):
        profile = profile_traces(traces) if traces else None
        memory = tuple(device for path in snapshots for device in profile_memory(path))
    planned = None if profile is None else _planned(profile, arguments)
    write_line(_report(profile, planned, memory, arguments))
    if arguments.html is not None:
        from shardwise.render.html_profile import profile_html

        write_file(
            arguments.html, profile_html(profile, memory, planned), is_forced=arguments.is_forced, example="page.html"
        )
    return EXIT_OK


def _planned(profile: "TraceProfile", arguments: argparse.Namespace) -> "PlannedProfile | None":
    """The profile beside its plan, where one is known."""
    from shardwise.ask.plans import calibrated
    from shardwise.measure.trace_files import plan_file_of
    from shardwise.plan_file import read_plan
    from shardwise.reconcile.planned_profile import planned_profile

    file = arguments.plan or plan_file_of(arguments.traces)
    if file is None:
        if arguments.calibration is not None:
            raise UsageError(
                "a calibration predicts a plan, and no plan is known", code="cli-usage", fix="add --plan plan.json"
            )
        return None
    plan = calibrated(read_plan(file), arguments.calibration)
    with waiting("turning knobs"):
        return planned_profile(profile, plan)


def _report(
    profile: "TraceProfile | None",
    planned: "PlannedProfile | None",
    memory: "tuple[MemoryProfile, ...]",
    arguments: argparse.Namespace,
) -> str:
    if arguments.is_json:
        from shardwise.render.json_profile import memory_profile_object, profile_object
        from shardwise.render.json_text import json_text

        if profile is None:
            return json_text(memory_profile_object(memory))
        said = profile_object(profile, planned)
        return json_text(said | ({"memory": memory_profile_object(memory)} if memory else {}))
    from shardwise.render.text_memory_profile import memory_profile_text
    from shardwise.render.text_profile import profile_text

    style = stdout_style()
    parts = []
    if profile is not None:
        parts.append(profile_text(profile, planned, has_units=arguments.has_units, style=style))
    if memory:
        parts.append(memory_profile_text(memory, style=style))
    return "\n\n".join(parts)
