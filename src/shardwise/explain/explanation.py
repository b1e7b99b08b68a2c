"""Everything there is to say about one plan: verdict, memory, time, traps, world sizes, and what to change."""

from shardwise.explain.best_plan import best_plan
from shardwise.explain.cautions import cautions
from shardwise.explain.changes import Predictions, faster_changes, remedies
from shardwise.explain.choices import choice_edits, choice_findings
from shardwise.explain.conventions import seed_differences
from shardwise.explain.host import host_shortage
from shardwise.explain.memory_findings import memory_findings
from shardwise.explain.records import Explanation, Finding
from shardwise.explain.time_findings import time_findings
from shardwise.explain.told import told
from shardwise.explain.world_sizes import world_size_finding
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.prediction import FIT_VERBS, Prediction
from shardwise.rules import require_valid
from shardwise.units import format_gib, format_seconds

__all__ = ["explain"]


def explain(plan: Plan) -> Explanation:
    """Structured findings about a valid plan, and changes that were each predicted again.

    Raises:
        LayoutError: the layout breaks a rule.
        RecipeError: the recipe breaks a rule.
    """
    require_valid(plan)
    prediction = predict(plan)
    made: Predictions = {}
    if prediction.fits and not prediction.memory.is_borderline:
        changes = faster_changes(plan, prediction, made=made, also=choice_edits(plan))
    else:
        changes = remedies(plan, prediction, made=made)
    more = (one for one in changes if one.plan.cluster.num_gpus > plan.cluster.num_gpus)
    findings = (
        _verdict(plan, prediction),
        *memory_findings(plan, prediction.memory),
        *time_findings(plan, prediction),
        world_size_finding(plan, prediction, enough=next(more, None)),
        *cautions(plan, prediction),
        *choice_findings(plan, prediction, made=made),
        *(seed_differences(plan) if plan.recipe.convention == "seed" else ()),
    )
    best = best_plan(plan, prediction)
    return Explanation(plan=plan, prediction=prediction, findings=findings, changes=changes, best=best)


def _verdict(plan: Plan, prediction: Prediction) -> Finding:
    memory, time = prediction.memory, prediction.time
    shortage = host_shortage(memory)
    host = f"; {shortage}" if shortage else ""
    return Finding(
        topic="verdict",
        claim=f"{plan.model.name} on {plan.cluster.num_gpus} x {plan.cluster.gpu.name} {FIT_VERBS[prediction.fit]}: "
        f"{format_gib(memory.needed_bytes)} of {format_gib(memory.capacity_bytes)} per GPU, "
        f"{format_seconds(time.step_s)} per step{host}.",
        numbers=(
            told("needed", prediction, "memory.needed_bytes", "bytes"),
            told("capacity", prediction, "memory.capacity_bytes", "bytes"),
            told("step", prediction, "time.step_s", "s"),
        ),
        because="; ".join(prediction.assumptions),
    )
