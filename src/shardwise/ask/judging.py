"""A rate of training that someone reports is judged: against the GPU's peak, the prediction and published runs."""

from shardwise.ask.answers import JudgeAnswer
from shardwise.ask.found import no_plan
from shardwise.ask.plans import ClusterSource, asked_plan, checked_prediction, is_cluster, plain_numbers
from shardwise.ask.searching import search_plan
from shardwise.catalog import read_cluster
from shardwise.cluster import Gpu
from shardwise.errors import UsageError
from shardwise.explain.judgement import ReportedUnit, judge_rate, judge_without_model
from shardwise.fields import plan_fields
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.plan_file import PlanSource
from shardwise.search import SearchBounds
from shardwise.units import TERA

LEAST_PER_CENT = 1.5
"""An MFU from here on is written in per cent: no share of a peak is as large."""


def judge(
    source: Plan | PlanSource,
    cluster: ClusterSource | None = None,
    /,
    *,
    tokens_per_s: float | None = None,
    tokens_per_s_per_gpu: float | None = None,
    tflops: float | None = None,
    mfu: float | None = None,
    step_s: float | None = None,
    **fields: object,
) -> JudgeAnswer:
    """Say what a reported rate is, how far from the prediction and from the best published run, and the likely causes.

    Args:
        source: the plan that ran; or a model with a cluster, whose recommended plan is compared where no layout is
            given; or a GPU alone, with ``tflops`` or ``mfu``.
        cluster: such as ``"8xh200-sxm"``, only after a model.
        tokens_per_s: tokens per second of all GPUs together.
        tokens_per_s_per_gpu: tokens per second of one GPU.
        tflops: TFLOP/s of one GPU, whatever was counted.
        mfu: the model FLOP utilisation, as a share, or in per cent from 1.5 on.
        step_s: seconds of an optimizer step, with ``global_batch_size`` and ``seq_len``.
        fields: fields of the recipe and the layout, and ``engine``.

    Raises:
        UsageError: several figures or none are given, or one that is not positive.
    """
    given = {
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": tokens_per_s_per_gpu,
        "tflops": tflops,
        "mfu": mfu,
        "step_s": step_s,
    }
    given = dict(zip(given, plain_numbers(**given), strict=True))
    name, amount = _only(given)
    unit, scaled = _in_base_units(name, amount)
    if cluster is None and isinstance(source, str) and is_cluster(source):
        return JudgeAnswer(judgement=judge_without_model(gpu=_gpu_of(source, unit), unit=unit, amount=scaled))
    plan = _plan(source, cluster, fields)
    if name == "tokens_per_s":
        scaled /= plan.layout.world_size
    found = judge_rate(plan=plan, prediction=checked_prediction(plan), unit=unit, amount=scaled)
    return JudgeAnswer(judgement=found)


def _only(given: dict[str, float | None]) -> tuple[str, float]:
    """The name and the amount of the one figure that was given."""
    figures = [(name, value) for name, value in given.items() if value is not None]
    if len(figures) != 1:
        raise UsageError(
            f"{len(figures)} figures are given, and one is judged",
            code="judge-figure",
            fix="give one of tokens_per_s, tokens_per_s_per_gpu, tflops, mfu and step_s, as --tflops 420 or tflops=420",
        )
    name, value = figures[0]
    if not 0 < value < float("inf"):
        raise UsageError(
            f"{name}={value:g} is not a positive figure", code="judge-figure", fix=f"write {name} as it was printed"
        )
    return name, float(value)


def _in_base_units(name: str, amount: float) -> tuple[ReportedUnit, float]:
    """The unit of a figure, and the figure in it."""
    if name == "tflops":
        return "flop_per_s", amount * TERA
    if name == "mfu":
        return "mfu_fraction", amount / 100 if amount >= LEAST_PER_CENT else amount
    return ("step_s" if name == "step_s" else "tokens_per_s"), amount


def _gpu_of(source: str, unit: ReportedUnit) -> Gpu:
    """The part that a rate is a share of."""
    if unit not in ("flop_per_s", "mfu_fraction"):
        raise UsageError(
            "tokens and seconds say nothing without a model",
            code="judge-figure",
            fix=f"name the model as well: llama-3.1-8b {source}",
        )
    return read_cluster(source).gpu


def _plan(source: Plan | PlanSource, cluster: ClusterSource | None, fields: dict[str, object]) -> Plan:
    """The plan that ran; of a model without a layout the one that would be recommended."""
    question = asked_plan(source, cluster, fields)
    has_layout = any(field.name in fields for field in plan_fields(Layout))
    if cluster is None or has_layout:
        return question
    result = search_plan(question, SearchBounds(), "step_time")
    if not result.plans:
        raise no_plan(result)
    return result.plans[0].plan
