"""List the GPUs, nodes, networks, prices and models that have a name, each value with its source and date."""

import argparse

from shardwise.cli.command import EXIT_OK
from shardwise.cli.options import add_json_option

SECTIONS = ("gpus", "nodes", "networks", "prices", "models")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """SECTION and WORD, or ``show`` and an id."""
    parser.add_argument(
        "section",
        metavar="SECTION",
        nargs="?",
        choices=(*SECTIONS, "show"),
        help=f"{', '.join(SECTIONS)}, or show followed by an id; without it, how many entries each section has",
    )
    parser.add_argument(
        "word", metavar="WORD", nargs="?", help="only entries whose id or name contains it; the id to show"
    )
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print a section, or everything known about one entry."""
    if arguments.section == "show":
        _show(arguments.word, is_json=arguments.is_json)
    elif arguments.section is None:
        _count(is_json=arguments.is_json)
    else:
        _list(arguments.section, word=arguments.word or "", is_json=arguments.is_json)
    return EXIT_OK
