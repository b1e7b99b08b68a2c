"""GPU-hours, days, dollars and energy of a whole training run.

With a PLAN its predicted step time is used. With a MODEL, on a CLUSTER or on --num-gpus of --gpu, it is that of the
plan recommended there, or follows from the run's FLOP and --mfu. Goodput (failures, restarts, checkpoints, batch
ramps, evaluation and repeated steps) is predicted from published rates and whole runs unless it is given. The band of
every figure is that of speed and goodput: nine runs in ten lie inside.
"""

import argparse
import shlex

from shardwise.cli.command import EXIT_DOES_NOT_FIT, EXIT_OK
from shardwise.cli.options import add_json_option, add_plan_source, amount, count, sequence_length, whole_number
from shardwise.cli.output import stdout_style, write_line
from shardwise.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PLAN; or MODEL with CLUSTER, or with a GPU and how many."""
    add_plan_source(parser)
    add_json_option(parser)
    parser.add_argument("--tokens", type=count, metavar="N", help="tokens of the whole run, such as 15T")
    parser.add_argument("--price", type=amount, metavar="USD", help="dollars per GPU and hour (default: catalogue)")
    parser.add_argument("--gpu", metavar="ID", help="after MODEL, instead of CLUSTER: an accelerator such as h100-sxm")
    parser.add_argument("--num-gpus", type=whole_number, metavar="N", help="how many of them")
    parser.add_argument(
        "--mfu", type=amount, metavar="SHARE", help="for MODEL: assumed MFU (default: a predicted step)"
    )
    parser.add_argument(
        "--seq-len",
        type=sequence_length,
        metavar="N",
        help="for MODEL: count causal attention too; for PLAN: instead of its own",
    )
    parser.add_argument("--goodput", type=amount, metavar="SHARE", help="for MODEL: share of time that trains, 0 to 1")


def run(arguments: argparse.Namespace) -> int:
    """Print the cost; exit code 3 when the plan that is priced does not fit."""
    from shardwise.ask.costs import cost
    from shardwise.cli.plan_source import asked_source

    if arguments.cluster is not None and (arguments.gpu is not None or arguments.num_gpus is not None):
        raise UsageError("CLUSTER and --gpu exclude each other", code="cli-usage", fix="leave out --gpu and --num-gpus")
    if arguments.gpu is not None and arguments.num_gpus is None:
        raise UsageError(f"how many {arguments.gpu}?", code="cli-usage", fix="add --num-gpus 64")
    source, hardware = asked_source(arguments, gpu=arguments.gpu)
    answer = cost(
        source,
        hardware,
        tokens=arguments.tokens,
        num_gpus=arguments.num_gpus,
        mfu=arguments.mfu,
        seq_len=arguments.seq_len if isinstance(source, str) else None,
        goodput=arguments.goodput,
        price=arguments.price,
    )
    if arguments.is_json:
        from shardwise.render.json_text import json_text

        write_line(json_text(answer.to_dict()))
    else:
        from shardwise.render.text_cost import run_cost_text

        write_line(run_cost_text(answer.run, commands=_next(arguments, hardware, answer.run.fit), style=stdout_style()))
    return EXIT_DOES_NOT_FIT if answer.run.fits is False else EXIT_OK


def _next(arguments: argparse.Namespace, hardware: str | None, fit: str | None) -> list[str]:
    """The plan that a model would run; of a plan its run prepared where it fits, and its remedies where it may not."""
    source, length = arguments.source, arguments.seq_len
    if source == "-":
        return []
    if hardware is None:
        words = ("train", source, "--dry-run") if fit == "fits" else ("explain", source)
        return [shlex.join(("shardwise", *words))]
    cluster = hardware if arguments.num_gpus is None else f"{arguments.num_gpus}x{hardware}"
    return [shlex.join(("shardwise", "plan", source, cluster, *(["--seq-len", str(length)] if length else [])))]
