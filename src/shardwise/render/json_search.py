"""A search as ``shardwise.search/1``, the contract other programs read."""

from shardwise.plan_file import plan_to_json
from shardwise.render.json_prediction import prediction_object
from shardwise.search.records import ClosestPlan, MissedTargets, RankedPlan, Relief, SearchResult, TargetChange
from shardwise.search.what_if import Sensitivity

SEARCH_SCHEMA = "shardwise.search/1"


def search_object(
    result: SearchResult, *, sensitivity: Sensitivity | None = None, has_clock: bool = False
) -> dict[str, object]:
    """The whole answer; ``closest`` only when no plan fits, ``missed`` only when none meets a deadline or a budget.

    ``wall_s`` is null unless it is asked for: the same question gives the same bytes.
    """
    written: dict[str, object] = {
        "schema": SEARCH_SCHEMA,
        "objective": result.objective,
        "space": {
            "layouts_considered": result.space.layouts_considered,
            "layouts_feasible": result.space.layouts_feasible,
            "layouts_invalid": result.space.layouts_invalid,
            "layouts_too_big": result.space.layouts_too_big,
            "layouts_slower": result.space.layouts_slower,
            "layouts_evaluated": result.space.layouts_evaluated,
            "layouts_predicted": result.space.layouts_predicted,
            "wall_s": result.space.wall_s if has_clock else None,
        },
        "plans": [ranked_plan_object(ranked) for ranked in result.plans],
        "pareto": [ranked_plan_object(ranked) for ranked in result.pareto],
        "rejected": [
            {"rule": group.rule, "count": group.count, "example": group.example, "fix": group.fix}
            for group in result.rejected
        ],
        "assumptions": list(result.assumptions),
        "notes": list(result.notes),
    }
    if sensitivity is not None:
        written["what_if"] = sensitivity_object(sensitivity)
    if result.closest is not None:
        written["closest"] = closest_object(result.closest)
    if result.repairs:
        written["repairs"] = [relief_object(relief) for relief in result.repairs]
    if result.missed is not None:
        written["missed"] = missed_object(result.missed)
    return written


def sensitivity_object(sensitivity: Sensitivity) -> dict[str, object]:
    """What binds, and what other machines would change."""
    return {
        "binding": sensitivity.binding,
        "changes": [
            {
                "change": change.change,
                "plan": plan_to_json(change.plan),
                "step_s": change.step_s,
                "step_ratio": change.step_ratio,
            }
            for change in sensitivity.changes
        ],
    }


def missed_object(missed: MissedTargets) -> dict[str, object]:
    """The fastest plan, what it misses, and what would be met."""
    return {
        "plan": plan_to_json(missed.plan),
        "prediction": prediction_object(plan=missed.plan, prediction=missed.prediction),
        "because": missed.because,
        "changes": [target_change_object(change) for change in missed.changes],
    }


def target_change_object(change: TargetChange) -> dict[str, object]:
    """A changed input under which a run meets its deadline and its budget."""
    return {
        "change": change.change,
        "plan": plan_to_json(change.plan),
        "days": change.days,
        "usd": change.usd,
        "caution": change.caution,
    }


def ranked_plan_object(ranked: RankedPlan) -> dict[str, object]:
    """A plan, its prediction, and how it compares with the recommended one."""
    return {
        "rank": ranked.rank,
        "plan": plan_to_json(ranked.plan),
        "prediction": prediction_object(plan=ranked.plan, prediction=ranked.prediction),
        "objective_value": ranked.objective_value,
        "ratio_to_best": ranked.ratio_to_best,
        "is_tie": ranked.is_tie,
        "num_axes": ranked.num_axes,
        "differences_s": {difference.component: difference.slower_s for difference in ranked.differences},
        "why": ranked.why,
    }


def closest_object(closest: ClosestPlan) -> dict[str, object]:
    """What came closest to fitting, what it lacks, and the changes that were found to help."""
    return {
        "plan": plan_to_json(closest.plan),
        "prediction": prediction_object(plan=closest.plan, prediction=closest.prediction),
        "missing_bytes": closest.missing_bytes,
        "lacks": closest.lacks,
        "because": closest.because,
        "reliefs": [relief_object(relief) for relief in closest.reliefs],
    }


def relief_object(relief: Relief) -> dict[str, object]:
    """A change under which a search found a plan."""
    return {
        "change": relief.change,
        "plan": plan_to_json(relief.plan),
        "device_used_bytes": relief.device_used_bytes,
        "needed_bytes": relief.needed_bytes,
        "step_s": relief.step_s,
        "caution": relief.caution,
    }
