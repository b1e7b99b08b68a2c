"""The cost of a whole run at the predicted step of a plan: the one given, or the one recommended for a model."""

from dataclasses import dataclass, replace

from shardwise.ask.answers import CostAnswer
from shardwise.ask.plans import (
    QUESTION,
    ClusterSource,
    asked_plan,
    checked_prediction,
    plain_counts,
    plain_numbers,
    plan_of,
    require_model,
)
from shardwise.ask.searching import search_plan
from shardwise.catalog import read_cluster
from shardwise.catalog.hardware.request import MAX_GPUS
from shardwise.cluster import Cluster
from shardwise.collector import paused_collector
from shardwise.errors import ModelError, RecipeError, ShardwiseError, UsageError
from shardwise.families import read_model
from shardwise.plan import Plan
from shardwise.plan_file import PlanSource
from shardwise.predict.cost import TOKENS_FIX, CostRequest, estimate_cost, predict_cost, require_figures
from shardwise.prediction import Fit, Throughput
from shardwise.render.layout_words import layout_words
from shardwise.render.run_cost import RunCost
from shardwise.search import SearchBounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended:
    """The outcome of the search for a plan to price."""

    plan: Plan | None = None
    """``None`` where nothing fits, or the question was refused."""
    sentence: str
    """The assumption that follows: whose step is taken, or why an MFU is assumed."""
    fit: Fit | None
    """``None`` where no plan was searched, so that nobody knows."""
    seq_len: int | None = None
    """The length of a sequence that the question has, given or assumed; ``None`` where there is no question."""


def cost(
    source: Plan | PlanSource,
    cluster: ClusterSource | None = None,
    /,
    *,
    tokens: float | None = None,
    num_gpus: int | None = None,
    mfu: float | None = None,
    seq_len: int | None = None,
    goodput: float | None = None,
    price: float | None = None,
) -> CostAnswer:
    """Say how many GPU-hours, days, dollars and how much energy a whole run takes.

    Args:
        source: a plan or its file, which is priced at its predicted step; or a model, with a cluster.
        cluster: such as ``"64xh100-sxm"``; or a single GPU such as ``"h100-sxm"``, of which there are ``num_gpus``.
        tokens: how many tokens the whole run trains; a plan may say it itself.
        num_gpus: how many GPUs, where ``cluster`` is a single one.
        mfu: the model FLOP utilisation that is assumed, where the source is a model and no plan is to be searched.
        seq_len: tokens of a sample, where the source is a model; with ``mfu`` causal attention is then counted too.
        goodput: the share of the time in which the run trains, where the source is a model.
        price: dollars per GPU and hour.

    Raises:
        ShardwiseError: with a message, a code and a fix, as the command line refuses.
    """
    tokens, mfu, goodput, price = plain_numbers(tokens=tokens, mfu=mfu, goodput=goodput, price=price)
    num_gpus, seq_len = plain_counts(num_gpus=num_gpus, seq_len=seq_len)
    if cluster is None:
        _require_none(mfu=mfu, seq_len=seq_len, goodput=goodput, num_gpus=num_gpus)
        return CostAnswer(run=_cost_of_plan(plan_of(source, None, {} if tokens is None else {"tokens": tokens}), price))
    named = require_model(source, beside=str(cluster))
    on, count = _counted(read_cluster(cluster), num_gpus)
    if tokens is None:
        raise UsageError("the cost depends on how many tokens are trained", code="cost-tokens", fix=TOKENS_FIX)
    model = read_model(named)
    request = CostRequest(
        model=model,
        tokens=tokens,
        gpu=on.gpu,
        num_gpus=count,
        mfu_fraction=mfu,
        seq_len=seq_len,
        usd_per_gpu_hour=price,
        prices=on.node.prices,
        goodput_fraction=goodput,
    )
    require_figures(request)
    hardware = cluster if num_gpus is None else f"{count}x{on.gpu.id}"
    planned = _recommended(named, hardware, tokens=tokens, seq_len=seq_len) if mfu is None else None
    if planned is not None and planned.plan is not None:
        run = _cost_of_plan(planned.plan, price, goodput=goodput, origin=planned.sentence)
        return CostAnswer(run=replace(run, assumed=QUESTION - ({"seq_len"} if seq_len else set())))
    if planned is None:
        return CostAnswer(run=RunCost(model=model, gpu=on.gpu, num_gpus=count, cost=estimate_cost(request)))
    found = estimate_cost(replace(request, seq_len=planned.seq_len or seq_len))
    found = replace(found, assumptions=(planned.sentence, *found.assumptions))
    return CostAnswer(run=RunCost(model=model, gpu=on.gpu, num_gpus=count, cost=found, fit=planned.fit))


def _recommended(model: PlanSource, cluster: ClusterSource, *, tokens: float, seq_len: int | None) -> Recommended:
    """The plan that is recommended for the model there, or why there is none."""
    question = None
    try:
        fields = {"tokens": tokens} | ({"seq_len": seq_len} if seq_len is not None else {})
        question = asked_plan(model, cluster, fields)
        with paused_collector():
            found = search_plan(question, SearchBounds(), "step_time").plans
    except ShardwiseError as error:
        if isinstance(error, ModelError):
            raise
        sentence = f"no plan was searched ({error.message}), so an MFU is assumed"
        return Recommended(sentence=sentence, fit=None, seq_len=question.recipe.seq_len if question else None)
    for best in found[:1]:
        return Recommended(plan=best.plan, sentence=_origin(best.plan), fit=best.prediction.fit)
    sentence = "no plan of this model fits this hardware, so an MFU is assumed"
    return Recommended(sentence=sentence, fit="does not fit", seq_len=question.recipe.seq_len)


def _utilisation_words(throughput: Throughput) -> str:
    share = throughput.mfu_fraction
    return "" if share is None else f"; {share:.1%} MFU ({throughput.mfu_convention})"


def _origin(plan: Plan) -> str:
    """The sentence that says which plan's step is taken."""
    return f"the step is that of the plan recommended for it: {layout_words(plan)}"


def _require_none(**given: float | None) -> None:
    """Return when nothing was given that only a model needs.

    Raises:
        UsageError: a plan has its own.
    """
    name = next((name for name, value in given.items() if value is not None), None)
    if name is not None:
        option = f"--{name.replace('_', '-')}"
        raise UsageError(f"{option} goes with a MODEL; a plan has its own", code="cli-usage", fix=f"leave out {option}")


def _counted(cluster: Cluster, num_gpus: int | None) -> tuple[Cluster, int]:
    """The hardware, and for how many of its GPUs the run pays.

    Raises:
        UsageError: GPUs are counted twice.
        RecipeError: more than the largest cluster has; :func:`estimate_cost` checks the other figures.
    """
    if num_gpus is None:
        return cluster, cluster.num_gpus
    if num_gpus > MAX_GPUS:
        raise RecipeError(
            f"{num_gpus:,} GPUs are more than the {MAX_GPUS:,} of the largest cluster",
            code="cost-gpus",
            fix=f"give --num-gpus {MAX_GPUS} or fewer",
        )
    if cluster.num_gpus != 1:
        raise UsageError(
            f"the hardware is {cluster.num_gpus} GPUs already, and --num-gpus counts single ones",
            code="cli-usage",
            fix=f"write {cluster.num_gpus}x{cluster.gpu.id} after the model, without --gpu and --num-gpus",
        )
    return cluster, num_gpus


def _cost_of_plan(
    plan: Plan, usd_per_gpu_hour: float | None, *, goodput: float | None = None, origin: str = ""
) -> RunCost:
    """The cost of a plan's tokens at its predicted step."""
    prediction = checked_prediction(plan)
    found = predict_cost(
        plan=plan,
        time=prediction.time,
        throughput=prediction.throughput,
        usd_per_gpu_hour=usd_per_gpu_hour,
        goodput_fraction=goodput,
        origin=origin and origin + _utilisation_words(prediction.throughput),
    )
    if found is None:
        raise UsageError("the plan does not say how many tokens are trained", code="cost-tokens", fix=TOKENS_FIX)
    cluster = plan.cluster
    return RunCost(
        model=plan.model, gpu=cluster.gpu, num_gpus=cluster.num_gpus, cost=found, plan=plan, fit=prediction.fit
    )
