"""GPU-hours, days, dollars and energy of a whole training run.

With a PLAN the predicted step time is used. With a MODEL the run is priced from its FLOP and an assumed MFU, on a
CLUSTER or on --num-gpus of --gpu. Goodput (failures, restarts, checkpoints) is predicted from published failure rates
unless it is given.
"""

import argparse
from typing import TYPE_CHECKING

from shardwise.cli.command import EXIT_DOES_NOT_FIT, EXIT_OK, UsageError
from shardwise.cli.options import add_json_option, add_plan_source, amount, count, whole_count, whole_number
from shardwise.cli.output import stdout_style, write_line
from shardwise.cli.plan_source import read_source, require_model

if TYPE_CHECKING:
    from shardwise.render.run_cost import RunCost

ONLY_FOR_A_MODEL = {"mfu": "--mfu", "seq_len": "--seq-len", "goodput": "--goodput", "num_gpus": "--num-gpus"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """PLAN; or MODEL with CLUSTER, or with a GPU and how many."""
    add_plan_source(parser)
    add_json_option(parser)
    parser.add_argument("--tokens", type=count, metavar="N", help="tokens of the whole run, such as 15T")
    parser.add_argument("--price", type=amount, metavar="USD", help="dollars per GPU and hour (default: catalogue)")
    parser.add_argument("--gpu", metavar="ID", help="after MODEL, instead of CLUSTER: an accelerator such as h100-sxm")
    parser.add_argument("--num-gpus", type=whole_number, metavar="N", help="how many of them")
    parser.add_argument("--mfu", type=amount, metavar="SHARE", help="for MODEL: assumed MFU, 0 to 1 (default: 0.4)")
    parser.add_argument("--seq-len", type=whole_count, metavar="N", help="for MODEL: count causal attention too")
    parser.add_argument("--goodput", type=amount, metavar="SHARE", help="for MODEL: share of time that trains, 0 to 1")


def run(arguments: argparse.Namespace) -> int:
    """Print the cost; exit code 3 when the plan that is priced does not fit."""
    is_model = arguments.cluster is not None or arguments.gpu is not None
    cost = _cost_of_model(arguments) if is_model else _cost_of_plan(arguments)
    if arguments.is_json:
        from shardwise.render.json_answers import run_cost_object
        from shardwise.render.json_text import json_text

        write_line(json_text(run_cost_object(cost)))
    else:
        from shardwise.render.text_cost import run_cost_text

        write_line(run_cost_text(cost, style=stdout_style()))
    return EXIT_OK if cost.fits else EXIT_DOES_NOT_FIT


def _cost_of_model(arguments: argparse.Namespace) -> "RunCost":
    """From FLOP and an assumed MFU."""
    from shardwise.catalog import read_cluster
    from shardwise.families import read_model
    from shardwise.predict.cost import CostRequest, estimate_cost
    from shardwise.render.run_cost import RunCost

    if arguments.cluster is not None and (arguments.gpu is not None or arguments.num_gpus is not None):
        raise UsageError("CLUSTER and --gpu exclude each other", code="cli-usage", fix="leave out --gpu and --num-gpus")
    if arguments.cluster is None and arguments.num_gpus is None:
        raise UsageError(f"how many {arguments.gpu}?", code="cli-usage", fix="add --num-gpus 64")
    require_model(arguments.source, beside=arguments.cluster or f"--gpu {arguments.gpu}")
    _require_countable(arguments.num_gpus)
    model = read_model(arguments.source)
    cluster = read_cluster(arguments.cluster or arguments.gpu)
    if arguments.cluster is None and cluster.num_gpus != 1:
        raise UsageError(
            f"--gpu {arguments.gpu} is {cluster.num_gpus} GPUs already, and --num-gpus counts single ones",
            code="cli-usage",
            fix=f"write {arguments.gpu} after the model, without --gpu and --num-gpus",
        )
    num_gpus = arguments.num_gpus if arguments.cluster is None else cluster.num_gpus
    request = CostRequest(
        model=model,
        tokens=_tokens(arguments),
        gpu=cluster.gpu,
        num_gpus=num_gpus,
        mfu_fraction=arguments.mfu,
        seq_len=arguments.seq_len,
        usd_per_gpu_hour=arguments.price,
        prices=cluster.node.prices,
        goodput_fraction=arguments.goodput,
    )
    return RunCost(model=model, gpu=cluster.gpu, num_gpus=num_gpus, cost=estimate_cost(request), fits=True)


def _require_countable(num_gpus: int | None) -> None:
    """Return when the number of GPUs is one that a cluster can have; :func:`estimate_cost` checks the other figures.

    Raises:
        RecipeError: more than the largest cluster.
    """
    from shardwise.catalog.hardware.request import MAX_GPUS
    from shardwise.errors import RecipeError

    if num_gpus is not None and num_gpus > MAX_GPUS:
        raise RecipeError(
            f"{num_gpus:,} GPUs are more than the {MAX_GPUS:,} of the largest cluster",
            code="cost-gpus",
            fix=f"give --num-gpus {MAX_GPUS} or fewer",
        )


def _cost_of_plan(arguments: argparse.Namespace) -> "RunCost":
    """From the predicted step time."""
    from shardwise.predict import predict
    from shardwise.predict.cost import predict_cost
    from shardwise.render.run_cost import RunCost
    from shardwise.rules import require_valid

    unused = next((option for name, option in ONLY_FOR_A_MODEL.items() if getattr(arguments, name) is not None), None)
    if unused is not None:
        raise UsageError(f"{unused} goes with a MODEL; a plan has its own", code="cli-usage", fix=f"leave out {unused}")
    options = {"recipe": {"tokens": arguments.tokens}} if arguments.tokens is not None else {}
    plan = read_source(arguments.source, options)
    require_valid(plan)
    prediction = predict(plan)
    cost = predict_cost(
        plan=plan, time=prediction.time, throughput=prediction.throughput, usd_per_gpu_hour=arguments.price
    )
    if cost is None:
        raise UsageError("the plan does not say how many tokens are trained", code="cost-tokens", fix="add --tokens 1T")
    cluster = plan.cluster
    return RunCost(model=plan.model, gpu=cluster.gpu, num_gpus=cluster.num_gpus, cost=cost, fits=prediction.fits)


def _tokens(arguments: argparse.Namespace) -> float:
    if arguments.tokens is None:
        raise UsageError("the cost depends on how many tokens are trained", code="cost-tokens", fix="add --tokens 1T")
    return float(arguments.tokens)
