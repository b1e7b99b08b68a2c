"""List the GPUs, nodes, networks, prices and models that have a name, each value with its source and date.

`shardwise catalog gpus h100` keeps the entries whose name contains a word; `shardwise catalog show h100-sxm` prints
everything known about one entry, in base units, with the references behind it.
"""

import argparse

from shardwise.cli.command import EXIT_OK
from shardwise.cli.options import add_json_option
from shardwise.cli.output import stdout_style, write_line
from shardwise.errors import UsageError
from shardwise.render.json_text import json_text

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
    parser.add_argument("word", metavar="WORD", nargs="?", help="keep entries that contain it; after show, the id")
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print a section, how many entries there are, or everything known about one entry."""
    if arguments.section is None:
        write_line(_sizes(is_json=arguments.is_json))
    elif arguments.section == "show":
        write_line(_entry(arguments.word, is_json=arguments.is_json))
    else:
        write_line(_section(arguments.section, arguments.word or "", is_json=arguments.is_json))
    return EXIT_OK


def _sizes(*, is_json: bool) -> str:
    if is_json:
        from shardwise.render.catalog_rows import sizes_object

        return json_text(sizes_object())
    from shardwise.render.text_catalog import sizes_text

    return sizes_text(style=stdout_style())


def _section(section: str, word: str, *, is_json: bool) -> str:
    from shardwise.render.catalog_rows import rows_with, section_object

    rows = rows_with(section, word)
    if not rows:
        raise UsageError(
            f"no entry of {section} contains '{word}'",
            code="catalog-no-entry",
            fix=f"run `shardwise catalog {section}`",
        )
    if is_json:
        return json_text(section_object(section, rows))
    from shardwise.render.text_catalog import section_text

    return section_text(section, rows, style=stdout_style())


def _entry(entry_id: str | None, *, is_json: bool) -> str:
    from shardwise.render.catalog_rows import entry_object, find_entry, sections_with

    if not entry_id:
        raise UsageError("show needs an id", code="cli-usage", fix="run `shardwise catalog show h100-sxm`")
    entry = find_entry(entry_id)
    if entry is None:
        listings = " or ".join(f"`shardwise catalog {section} {entry_id}`" for section in sections_with(entry_id))
        raise UsageError(
            f"nothing in the catalogue has the id '{entry_id}'",
            code="catalog-no-entry",
            fix=f"choose an id from {listings}" if listings else "list the ids with `shardwise catalog gpus`",
        )
    if is_json:
        return json_text(entry_object(entry))
    from shardwise.render.text_catalog import entry_text

    return entry_text(entry, style=stdout_style())
