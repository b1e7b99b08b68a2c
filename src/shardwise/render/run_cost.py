"""The cost of a whole run as a record."""

from dataclasses import dataclass

from shardwise.cluster import Gpu
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.prediction import CostPrediction, Fit


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCost:
    """What was priced, and its price."""

    model: ModelSpec
    gpu: Gpu
    num_gpus: int
    cost: CostPrediction
    plan: Plan | None = None
    """The plan at whose step the run is priced; ``None`` for an estimate from an MFU."""
    fit: Fit | None = "fits"
    """Whether the priced plan fits its hardware; an estimate from an MFU that was given is taken to, and ``None`` says
    that no plan could be searched."""
    assumed: frozenset[str] = frozenset()
    """Fields of the plan's question that nobody gave."""

    @property
    def fits(self) -> bool | None:
        """Whether the run fits its hardware as predicted, be it at the edge; ``None`` where nobody knows."""
        return None if self.fit is None else self.fit != "does not fit"
