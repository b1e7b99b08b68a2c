"""Lay the prediction of a run beside what was measured: our own run folder, or another trainer's log and its plan.

Logs of torchtitan, Megatron-LM, DeepSpeed, the Hugging Face Trainer and Lightning are read, and nvidia-smi's CSV. The
median leaves the first steps out. A log that says another batch, length or number of GPUs than the plan is warned of.
"""

import argparse
from pathlib import Path

from shardwise.cli.command import EXIT_OK, UsageError
from shardwise.cli.options import add_json_option
from shardwise.cli.output import stdout_style, write_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run and, for logs, its plan."""
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder, measurement.json, or a trainer's log")
    add_json_option(parser)
    parser.add_argument("--plan", type=Path, metavar="PLAN", help="what was run (default: plan.json in the run folder)")


def run(arguments: argparse.Namespace) -> int:
    """Print the rows that both sides state."""
    from shardwise.plan_file import read_plan
    from shardwise.predict import predict
    from shardwise.reconcile.measured import measured_totals
    from shardwise.reconcile.totals import reconcile

    plan = read_plan(_plan_path(arguments))
    measured = measured_totals(arguments.run, plan)
    found = reconcile(plan, predict(plan), measured)
    if not found.rows:
        raise UsageError(
            f"'{arguments.run}' states neither a rate nor a peak of memory",
            code="reconcile-no-measurement",
            fix="give a log with step times, or the CSV of nvidia-smi's memory.used",
        )
    if arguments.is_json:
        from shardwise.render.json_text import json_text
        from shardwise.render.reconciliation import reconciliation_object

        write_line(json_text(reconciliation_object(found)))
    else:
        from shardwise.render.reconciliation import reconciliation_text

        write_line(reconciliation_text(found, style=stdout_style()))
    return EXIT_OK


def _plan_path(arguments: argparse.Namespace) -> Path:
    if arguments.plan is not None:
        return Path(arguments.plan)
    folder: Path = arguments.run if arguments.run.is_dir() else arguments.run.parent
    if (folder / "plan.json").exists():
        return folder / "plan.json"
    raise UsageError(
        f"what '{arguments.run}' ran is not known: there is no plan.json beside it",
        code="cli-usage",
        fix="add --plan plan.json",
    )
