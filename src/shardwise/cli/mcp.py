"""Serve an assistant: planning, predicting, explaining, importing and exporting as tools of the Model Context Protocol.

The assistant's program starts `shardwise mcp` itself and talks to it over standard input and output: its configuration
names the command `shardwise` with the argument `mcp`. The tools are the commands of the same names, with the same
numbers and errors. No tool writes a file unless the call names one, and none overwrites. The prompt that says how to
plan a run with them is docs/planner-prompt.md. --json lists the tools with their schemas and serves nobody.
"""

import argparse

from shardwise.cli.command import EXIT_OK
from shardwise.cli.options import add_json_option
from shardwise.cli.output import write_line
from shardwise.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Only ``--json``: a client sends everything else as a message."""
    add_json_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Answer messages until standard input ends, or list the tools."""
    if arguments.is_json:
        from shardwise.cli.mcp_tools import tools_object
        from shardwise.render.json_text import json_text

        write_line(json_text(tools_object()))
        return EXIT_OK
    try:
        from shardwise.cli.mcp_server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("shardwise"):
            raise
        raise UsageError(
            f"the SDK of the Model Context Protocol is not installed: there is no module {error.name}",
            code="mcp-missing",
            fix="pip install 'shardwise[mcp]'",
        ) from None
    serve()
    return EXIT_OK
