"""The cost of a whole run as a record, and that record as ``shardwise.cost/1``."""

from dataclasses import dataclass

from shardwise.cluster import Gpu
from shardwise.model import ModelSpec
from shardwise.prediction import CostPrediction
from shardwise.render.json_prediction import cost_object

COST_SCHEMA = "shardwise.cost/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What was priced, and its price."""

    model: ModelSpec
    gpu: Gpu
    num_gpus: int
    cost: CostPrediction
    fits: bool
    """False when the priced plan does not fit its hardware; true for an estimate from an MFU."""


def run_cost_object(run: RunCost) -> dict[str, object]:
    """The cost beside what was priced."""
    return {
        "schema": COST_SCHEMA,
        "model": run.model.name,
        "parameters": {"total": run.model.num_params, "active": run.model.num_active_params},
        "gpu": run.gpu.id,
        "num_gpus": run.num_gpus,
        "fits": run.fits,
        "cost": cost_object(run.cost),
        "assumptions": list(run.model.assumptions),
    }
