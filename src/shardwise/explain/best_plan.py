"""The plan that ``plan`` recommends for the question that a plan answers, beside the plan itself."""

from collections.abc import Iterator
from dataclasses import fields, replace

from shardwise.errors import ShardwiseError
from shardwise.explain.changes import beside
from shardwise.explain.records import VerifiedChange
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.prediction import Prediction
from shardwise.recipe import Recipe
from shardwise.rules.changes import current_value
from shardwise.rules.refusal import Value
from shardwise.search import SearchBounds, question_of
from shardwise.search.edits import LAYOUT, edit
from shardwise.search.one_pass import find
from shardwise.search.ranking import rank

__all__ = ["best_plan"]


def best_plan(plan: Plan, prediction: Prediction) -> VerifiedChange | None:
    """The plan that ``plan`` recommends for the same model, cluster, engine, recipe and batch: a search of its layout.

    It has no changes where the plan is the recommended one. ``None`` where no layout fits, and under the textbook
    convention, which counts states and no steps.
    """
    if plan.recipe.convention == "seed":
        return None
    asked = replace(plan.recipe, global_batch_size=plan.global_batch_size)
    try:
        question = question_of(model=plan.model, cluster=plan.cluster, recipe=asked, engine=plan.engine)
        fitting = find(question, SearchBounds()).evaluation.fitting
    except ShardwiseError:  # a rule excludes the question whatever the layout
        return None
    for best in rank(fitting, objective="step_time", limit=1):
        return beside(edit(plan, best.why, LAYOUT, tuple(_stated(best.plan))), best.prediction, prediction)
    return None


def _stated(plan: Plan) -> Iterator[tuple[str, Value]]:
    """Every field of the layout and the recipe but the batch: what a file leaves open may follow from another one."""
    for record in (Layout, Recipe):
        for one in fields(record):
            if one.name != "global_batch_size":
                yield one.name, current_value(plan, one.name)
