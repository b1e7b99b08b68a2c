"""``shardwise --help``: the commands and how they are asked for, without importing any of them."""

import site
import sys
from pathlib import Path

from shardwise.cli.command import COMMANDS

GUIDES = "share/doc/shardwise"
"""Where an installation puts the pages, below its prefix; a checkout has them in ``docs``."""

USAGE = """\
Usage: shardwise COMMAND [ARGUMENTS] [--json]

Plan a distributed training run and know why it will or will not fit.

Commands:
{commands}

MODEL    a catalogue name (llama-3.1-70b), a Hub repository (unsloth/Qwen3-8B), a config.json or its folder, or
         a size (70B, 30B-A3B)
CLUSTER  GPUs or nodes with a count (64xh100-sxm, 8xdgx-h100), a cloud instance (4xp5.48xlarge), or a TOML file
PLAN     a plan file in JSON or YAML; '-' reads it from standard input

Exit codes: 0 done, 1 a failure of ours, 2 input that cannot be used, 3 it does not fit.
`shardwise COMMAND --help` lists the options of a command; every command has --json.
Guides: {guides} (python.md, training.md, errors.md, story/README.md and others)
"""


def guides_folder() -> str:
    """The folder that holds the pages of the documentation: that of the checkout, or of the installation."""
    checkout = Path(__file__).parents[3] / "docs"
    installed = [Path(prefix, GUIDES) for prefix in (sys.prefix, site.getuserbase())]
    found = next((folder for folder in (checkout, *installed) if (folder / "python.md").is_file()), None)
    return "docs" if found is None else str(found)


def overview_text(*, guides: str = "docs") -> str:
    """What ``shardwise --help`` prints, with the folder of the documentation."""
    width = max(len(entry.name) for entry in COMMANDS)
    rows = [f"  {entry.name:<{width}}  {entry.summary}" for entry in COMMANDS]
    return USAGE.format(commands="\n".join(rows), guides=guides)
