"""The command line reference, docs/cli.md: ``python -m shardwise.cli.reference > docs/cli.md``, or ``make docs``."""

import argparse
import sys
from pathlib import Path

from shardwise.cli.command import COMMANDS, make_parser
from shardwise.cli.overview import overview_text

FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
"""The function of each shell by which shtab completes the name of a file."""

INTRODUCTION = """\
# Command line reference

Written by `make docs` from the program itself; a test compares the two.

## shardwise

```text
{overview}```

The JSON of every answer has a `schema`: `shardwise.prediction/1`, `shardwise.search/1`, `shardwise.explanation/1`,
`shardwise.cost/1`, `shardwise.catalog/1`, `shardwise.validation/1`. An error is one object with `ok` (false), `error`,
`code` and `fix` on standard output with `--json`, and two lines on standard error without;
[errors.md](errors.md) explains each code.
`plan --json` stays below 40 kB: `recommended` has the plan, its prediction and the reason, other predictions are short,
and `left_out` counts rows that are missing; with `--full` nothing is left out.
A change such as `recompute=full recompute_layers=null` is typed into the plan's file, or behind PLAN as the options
`--recompute full --recompute-layers null`: `null` takes back what the file says.
`SHARDWISE_DEBUG=1` shows the traceback of a failure of ours. `NO_COLOR=1` turns colour off; a pipe never gets any.

A shell completes commands, options and names of files once [shtab](https://docs.iterative.ai/shtab/) has written its
script; `pip install "shardwise[completion]"` brings it, and `--shell` takes bash, zsh or tcsh:

```text
python -m shtab --shell=bash shardwise.cli.reference.whole_parser > ~/.local/share/bash-completion/completions/shardwise
python -m shtab --shell=zsh shardwise.cli.reference.whole_parser > ~/.zfunc/_shardwise
```
"""

SECTION = """
## shardwise {name}

```text
{page}```
"""


def reference_page() -> str:
    """The whole of docs/cli.md."""
    sections = (
        SECTION.format(name=entry.name, page=make_parser(entry, entry.load()).format_help()) for entry in COMMANDS
    )
    return "".join((INTRODUCTION.format(overview=overview_text()), *sections))


def whole_parser() -> argparse.ArgumentParser:
    """All commands as subparsers of one, from which shtab writes a completion script (docs/cli.md says how)."""
    whole = argparse.ArgumentParser(prog="shardwise", description="Plan a distributed training run.")
    commands = whole.add_subparsers()
    for entry in COMMANDS:
        parser = commands.add_parser(entry.name, help=entry.summary)
        entry.load().add_arguments(parser)
        for action in parser._actions:
            if action.type is Path or action.dest == "source":
                vars(action)["complete"] = FILES
    return whole


if __name__ == "__main__":
    sys.stdout.write(reference_page())
