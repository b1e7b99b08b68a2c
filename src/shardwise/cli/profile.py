"""Read PyTorch profiler traces of one rank or many, and say where the step went and what would help.

Files are those of export_chrome_trace or tensorboard_trace_handler, plain or gzip, of NCCL, RCCL or gloo. Collectives
are matched across the given ranks, which splits their time into waiting for others and transfer. A file that is cut
off or damaged is read as far as it goes, and the report says so.
"""

import argparse
from pathlib import Path

from shardwise.cli.command import EXIT_OK
from shardwise.cli.options import add_json_option
from shardwise.cli.output import require_free, stdout_style, write_file, write_line
from shardwise.cli.progress import waiting


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The traces, and how much of the report is wanted."""
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE", help="a trace, or a folder of traces")
    add_json_option(parser)
    parser.add_argument("--units", action="store_true", dest="has_units", help="list every FSDP unit")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with pictures that works offline")
    parser.add_argument("--force", action="store_true", dest="is_forced", help="overwrite an existing file")


def run(arguments: argparse.Namespace) -> int:
    """Print the report."""
    from shardwise.measure.profile import profile_traces
    from shardwise.measure.trace_files import trace_files

    if arguments.html is not None:
        require_free(arguments.html, is_forced=arguments.is_forced)
    paths = trace_files(arguments.traces)
    with waiting(f"reading {len(paths)} traces" if len(paths) > 1 else f"reading {paths[0].name}"):
        profile = profile_traces(paths)
    if arguments.is_json:
        from shardwise.render.json_profile import profile_object
        from shardwise.render.json_text import json_text

        write_line(json_text(profile_object(profile)))
    else:
        from shardwise.render.text_profile import profile_text

        write_line(profile_text(profile, has_units=arguments.has_units, style=stdout_style()))
    if arguments.html is not None:
        from shardwise.render.html_profile import profile_html

        write_file(arguments.html, profile_html(profile), is_forced=arguments.is_forced)
    return EXIT_OK
