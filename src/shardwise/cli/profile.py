"""Read PyTorch profiler traces of one rank or many, and memory snapshots: where time and memory went, what would help.

Files are those of export_chrome_trace or tensorboard_trace_handler, plain or gzip, of NCCL, RCCL or gloo. Collectives
are matched across the given ranks, which splits their time into waiting for others and transfer. A file that is cut
off or damaged is read as far as it goes, and the report says so. Snapshots are what torch.cuda.memory._dump_snapshot
wrote.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.cli.command import EXIT_OK
from shardwise.cli.options import add_json_option
from shardwise.cli.output import require_free, stdout_style, write_file, write_line
from shardwise.cli.progress import waiting

if TYPE_CHECKING:
    from shardwise.measure.memory_profile import MemoryProfile
    from shardwise.measure.profile_records import TraceProfile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The traces, and how much of the report is wanted."""
    parser.add_argument(
        "traces", nargs="+", type=Path, metavar="TRACE", help="a trace, a memory snapshot, or a folder of them"
    )
    add_json_option(parser)
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
        require_free(arguments.html, is_forced=arguments.is_forced)
    paths = trace_files(arguments.traces)
    snapshots = [path for path in paths if is_memory_snapshot(path)]
    traces = [path for path in paths if path not in snapshots]
    with waiting(f"reading {len(paths)} files" if len(paths) > 1 else f"reading {paths[0].name}"):
        profile = profile_traces(traces) if traces else None
        memory = tuple(device for path in snapshots for device in profile_memory(path))
    write_line(_report(profile, memory, arguments))
    if arguments.html is not None:
        from shardwise.render.html_profile import profile_html

        write_file(arguments.html, profile_html(profile, memory), is_forced=arguments.is_forced)
    return EXIT_OK


def _report(profile: "TraceProfile | None", memory: "tuple[MemoryProfile, ...]", arguments: argparse.Namespace) -> str:
    if arguments.is_json:
        from shardwise.render.json_memory_profile import memory_profile_object
        from shardwise.render.json_profile import profile_object
        from shardwise.render.json_text import json_text

        if profile is None:
            return json_text(memory_profile_object(memory))
        return json_text(profile_object(profile) | ({"memory": memory_profile_object(memory)} if memory else {}))
    from shardwise.render.text_memory_profile import memory_profile_text
    from shardwise.render.text_profile import profile_text

    style = stdout_style()
    parts = [] if profile is None else [profile_text(profile, has_units=arguments.has_units, style=style)]
    if memory:
        parts.append(memory_profile_text(memory, style=style))
    return "\n\n".join(parts)
