"""A search as ``shardwise.search/1``, the contract other programs read."""

from shardwise.plan_file import plan_to_json
from shardwise.render.json_prediction import prediction_object
from shardwise.search.records import ClosestPlan, RankedPlan, SearchResult

SEARCH_SCHEMA = "shardwise.search/1"


def search_object(result: SearchResult) -> dict[str, object]:
    """The whole answer; ``closest`` only when no plan fits."""
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
            "wall_s": result.space.wall_s,
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
    if result.closest is not None:
        written["closest"] = closest_object(result.closest)
    return written


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
        "because": closest.because,
        "reliefs": [
            {
                "change": relief.change,
                "plan": plan_to_json(relief.plan),
                "device_used_bytes": relief.device_used_bytes,
                "needed_bytes": relief.needed_bytes,
                "step_s": relief.step_s,
                "caution": relief.caution,
            }
            for relief in closest.reliefs
        ],
    }
