"""``shardwise --help``: the commands and how they are asked for, without importing any of them."""

from shardwise.cli.command import COMMANDS

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
"""


def overview_text() -> str:
    """What ``shardwise --help`` prints."""
    width = max(len(entry.name) for entry in COMMANDS)
    return USAGE.format(commands="\n".join(f"  {entry.name:<{width}}  {entry.summary}" for entry in COMMANDS))
