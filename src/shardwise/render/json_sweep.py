"""A sweep over clusters as ``shardwise.sweep/1``."""

from shardwise.render.json_search import ranked_plan_object, target_change_object
from shardwise.search import SweepResult, SweepRow

SWEEP_SCHEMA = "shardwise.sweep/1"


def sweep_object(result: SweepResult) -> dict[str, object]:
    """Every cluster with its best plan, and which of them is recommended."""
    return {
        "schema": SWEEP_SCHEMA,
        "objective": result.objective,
        "deadline_days": result.bounds.deadline_days,
        "budget_usd": result.bounds.budget_usd,
        "why": result.why,
        "clusters": [_row_object(row, is_recommended=row is result.recommended) for row in result.rows],
        "changes": [target_change_object(change) for change in result.changes],
        "assumptions": list(result.assumptions),
    }


def _row_object(row: SweepRow, *, is_recommended: bool) -> dict[str, object]:
    cluster = row.question.cluster
    return {
        "gpu": cluster.gpu.id,
        "num_gpus": cluster.num_gpus,
        "num_nodes": cluster.num_nodes,
        "usd_per_gpu_hour": None if cluster.price is None else cluster.price.usd_per_gpu_hour,
        "is_recommended": is_recommended,
        "is_tie": row.is_tie,
        "is_on_front": row.is_on_front,
        "meets_targets": row.meets_targets,
        "problem": row.problem,
        "usd_per_million_tokens": row.usd_per_million_tokens,
        "best": None if row.best is None else ranked_plan_object(row.best),
    }
