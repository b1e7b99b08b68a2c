"""The cost of a whole run as a record."""

from dataclasses import dataclass

from shardwise.cluster import Gpu
from shardwise.model import ModelSpec
from shardwise.prediction import CostPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What was priced, and its price."""

    model: ModelSpec
    gpu: Gpu
    num_gpus: int
    cost: CostPrediction
    fits: bool
    """False when the priced plan does not fit its hardware; true for an estimate from an MFU."""
