"""Turn text, JSON Lines or Parquet into tokens on disk that training maps into memory, ready to share between runs.

`shardwise train --data` does the same by itself and keeps the tokens in its cache; this command is for data that many
runs or machines read. It writes a folder with tokens.bin and tokens.idx, which Megatron-LM reads as well, and
tokens.json, which says what they are.
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from shardwise.cli.command import EXIT_OK
from shardwise.cli.data_options import FIELD_HELP
from shardwise.cli.options import add_json_option
from shardwise.cli.output import OutputError, write_line, write_note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The files, the tokenizer, and where the tokens go."""
    parser.add_argument("input", type=Path, nargs="+", metavar="FILE", help="files of text, or folders of them")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a folder that does not exist yet")
    parser.add_argument(
        "--tokenizer", type=Path, metavar="PATH", help="a tokenizer.json or the folder of a model; without it, bytes"
    )
    parser.add_argument("--data-field", default="text", metavar="NAME", help=FIELD_HELP)
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write the folder and say what it holds."""
    from shardwise.cli.progress import waiting
    from shardwise.render.json_text import json_text
    from shardwise.train.data.prepare import tokenise
    from shardwise.train.data.sources import parse_source, source_files
    from shardwise.train.data.tokenizer import open_tokenizer

    out: Path = arguments.out
    if out.exists():
        raise OutputError(f"'{out}' exists already", code="output-exists", fix="choose another name")
    if not out.parent.is_dir():
        raise OutputError(f"there is no folder '{out.parent}'", code="output-path", fix="choose an existing folder")
    sources = [parse_source(str(path)) for path in arguments.input]
    for source in sources:
        source_files(source)
    tokenizer = open_tokenizer(arguments.tokenizer)
    with waiting("tokenising"):
        summary = tokenise(sources, out, tokenizer=tokenizer, field=arguments.data_field)
    write_note(f"wrote {out}")
    if arguments.is_json:
        write_line(json_text({"schema": "shardwise.tokens/1", **asdict(summary)}))
    else:
        write_line(f"{summary.num_tokens:,} tokens of {summary.num_documents:,} documents")
    return EXIT_OK
