"""The search for a plan: what is bounded, the batch, and the answer on one screen."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from shardwise.ask.answers import PlanAnswer
from shardwise.ask.bounded_fields import BOUNDED
from shardwise.ask.plans import (
    ClusterSource,
    asked_plan,
    assumed_fields,
    calibrated,
    finite_numbers,
    plain_counts,
    priced,
)
from shardwise.collector import paused_collector
from shardwise.errors import UsageError
from shardwise.fields import Field, plan_fields
from shardwise.layout import Layout, ZeroStage
from shardwise.plan import Plan
from shardwise.plan_file import PlanSource, recipe_assumptions
from shardwise.plan_file.values import check_fields
from shardwise.recipe import Recipe
from shardwise.search import (
    IntRange,
    Objective,
    SearchBounds,
    SearchResult,
    at_most,
    parse_counts,
    parse_range,
    rounded_batch,
    search,
)

ZERO_STAGES: tuple[ZeroStage, ...] = (0, 1, 2, 3)
DEGREES = ("dp_replicate", "dp_shard", "tp", "cp", "pp", "vpp", "ep", "expert_tp", "micro_batch_size")
AXES = (*BOUNDED, "activation_offload", "precision")
"""Fields whose bounds a caller gives one by one; every other limit stands in the record of the whole run."""
KNOWN = {field.name: field for field in (*plan_fields(Recipe), *plan_fields(Layout))}


def plan(
    model: PlanSource | Plan,
    cluster: ClusterSource | None = None,
    /,
    *,
    objective: Objective = "step_time",
    limits: SearchBounds | None = None,
    global_batch_tokens: float | None = None,
    price: float | None = None,
    calibration: str | Path | None = None,
    **fields: object,
) -> PlanAnswer:
    """Recommend a layout of a model on a cluster.

    Args:
        model: name, size, ``config.json`` or fields; or a plan, whose layout is searched again.
        cluster: such as ``"64xh100-sxm"``.
        objective: what to make small: step_time, cost, cost_and_time, memory or fewest_gpus.
        limits: limits of the whole run, such as ``sw.SearchBounds(deadline_days=30, max_gpus=64)``.
        global_batch_tokens: tokens per optimizer step, instead of ``global_batch_size`` in sequences.
        price: dollars per GPU and hour.
        calibration: a file of ``shardwise calibrate`` or ``reconcile``.
        fields: the recipe's, ``engine``, and bounds of the layout: ``tp=8``, ``pp="1..8"``, ``recompute=["none",
            "full"]``. ``precision`` may be a list of those that may be used.

    Raises:
        ShardwiseError: with a message, a code and a fix, as the command line refuses.
    """
    _require_objective(objective)
    (global_batch_tokens,) = finite_numbers(global_batch_tokens=global_batch_tokens)
    bounds = _with_fields(_checked(limits), fields)
    recipe = {name: value for name, value in fields.items() if name not in BOUNDED}
    if isinstance(recipe.get("precision"), list | tuple):
        recipe["precision"] = _values(recipe["precision"])[0]
    question = priced(asked_plan(model, cluster, recipe), price)
    question = calibrated(question, calibration)
    given = {*fields, *(["global_batch_size"] if global_batch_tokens is not None else [])}
    assumed = assumed_fields(model, cluster, given, question)
    with paused_collector():
        result = search_plan(question, bounds, objective, global_batch_tokens=global_batch_tokens)
    return PlanAnswer(result=result, assumed=assumed)


def _require_objective(objective: object) -> None:
    """Return when the objective is one of those there are.

    Raises:
        UsageError: with what to write.
    """
    if objective not in get_args(Objective):
        raise UsageError(
            f"objective is {objective!r}, not one of {', '.join(get_args(Objective))}",
            code="plan-unknown-choice",
            fix='write objective="step_time"',
        )


def _checked(limits: object) -> SearchBounds:
    """The limits of a whole run, each of which is what the search takes; none where none are given.

    Raises:
        ShardwiseError: with what to write.
    """
    if limits is None:
        return SearchBounds()
    if not isinstance(limits, SearchBounds):
        raise UsageError(
            f"limits is a {type(limits).__name__}, not the record of a run's limits",
            code="plan-wrong-type",
            fix="write limits=sw.SearchBounds(deadline_days=30, max_gpus=64)",
        )
    counts = {name: getattr(limits, name) for name in ("max_gpus", "max_plans", "max_predictions")}
    targets = {name: getattr(limits, name) for name in ("deadline_days", "budget_usd")}
    read: dict[str, Any] = dict(zip(counts, plain_counts(**counts), strict=True))
    read |= zip(targets, finite_numbers(**targets), strict=True)
    for axis in AXES:
        bound, field = getattr(limits, axis), KNOWN[axis]
        kind = IntRange if axis in DEGREES else bool if field.kind == "flag" else tuple
        if bound is not None and not isinstance(bound, kind):
            raise UsageError(
                f"limits has {axis}={bound!r}, and {'degrees' if axis in DEGREES else 'fields'} are bounded beside it",
                code="plan-wrong-type",
                fix=f"write sw.plan(..., {axis}={bound!r})",
            )
        if isinstance(bound, tuple):
            _read_bound(axis, _bound(field, bound))
    return replace(limits, **read)


def search_plan(
    question: Plan, bounds: SearchBounds, objective: Objective, *, global_batch_tokens: float | None = None
) -> SearchResult:
    """The search for a layout of the question, with all that was assumed; its batch may be given in tokens."""
    question = _with_token_batch(question, global_batch_tokens, max_gpus=bounds.max_gpus)
    result = search(
        model=question.model,
        cluster=question.cluster,
        recipe=question.recipe,
        engine=question.engine,
        bounds=bounds,
        objective=objective,
    )
    assumptions = (*recipe_assumptions(question), *result.assumptions)
    asked = result.question or question
    open_fields = asked.open_fields | question.open_fields
    asked = replace(asked, open_fields=open_fields)
    return replace(result, assumptions=assumptions, question=asked, asked_tokens=global_batch_tokens)


def _with_token_batch(question: Plan, tokens: float | None, *, max_gpus: int | None) -> Plan:
    """The question with its batch set to the sequences that so many tokens make; as it is for ``None``."""
    if tokens is None:
        return question
    num_gpus = at_most(question.cluster, max_gpus).num_gpus
    batch = rounded_batch(tokens=tokens, seq_len=question.recipe.seq_len, num_gpus=num_gpus)
    return replace(
        question,
        recipe=replace(question.recipe, global_batch_size=batch.num_sequences),
        assumptions=(*question.assumptions, batch.sentence),
    )


def bounds_of(given: Mapping[str, Any], limits: SearchBounds) -> SearchBounds:
    """The limits of a run together with the bounds of its axes.

    Args:
        given: the bounds by field: degrees as text (``8``, ``1..8``, ``1,2,4``), choices as a tuple, or a flag.
        limits: everything that is no axis, and the bounds of axes that ``given`` leaves out.
    """
    read: dict[str, Any] = {axis: _read_bound(axis, given[axis]) for axis in AXES if given.get(axis) is not None}
    return replace(limits, **read)


def _read_bound(axis: str, bound: Any) -> Any:
    """The bound of an axis as :class:`SearchBounds` holds it."""
    if axis in DEGREES:
        return parse_range(str(bound), axis=axis)
    if axis == "stage_layers":
        return parse_counts(bound, axis=axis)
    return tuple(stage for stage in ZERO_STAGES if str(stage) in map(str, bound)) if axis == "zero_stage" else bound


def _with_fields(limits: SearchBounds, fields: Mapping[str, object]) -> SearchBounds:
    """The limits with the bounds that a caller in Python gave; without any, the limits as they are."""
    given = {name: _bound(KNOWN[name], fields[name]) for name in AXES if fields.get(name) is not None}
    given["precision"] = given["precision"] if len(given.get("precision", ())) > 1 else None
    return limits if not any(value is not None for value in given.values()) else bounds_of(given, limits)


def _bound(field: Field, value: object) -> Any:
    """A bound as the command line spells it.

    Raises:
        RecipeError, LayoutError: a choice that the field does not have.
    """
    section = "recipe" if field in plan_fields(Recipe) else "layout"
    if field.kind == "flag":
        return check_fields(section, {field.name: value}, (field,))[field.name]
    if not field.choices:
        return ",".join(str(one) for one in _values(value))
    return tuple(check_fields(section, {field.name: one}, (field,))[field.name] for one in _values(value))


def _values(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)
