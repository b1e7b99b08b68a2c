"""The predictions that an answer shows, with the memory of every stage."""

from collections.abc import Sequence
from dataclasses import replace

from shardwise.plan import Plan
from shardwise.predict.memory import predict_memory
from shardwise.prediction import Prediction
from shardwise.search.records import RankedPlan

__all__ = ["of_all_stages", "with_all_stages"]


def with_all_stages(shown: Sequence[RankedPlan]) -> tuple[RankedPlan, ...]:
    """Ranked plans with the memory of every stage; to be ranked they needed that of the fullest ones."""
    # A plan may be shown twice: in the ranking and on the front.
    distinct = {id(ranked.prediction): ranked for ranked in shown}
    whole = {key: of_all_stages(ranked.plan, ranked.prediction) for key, ranked in distinct.items()}
    return tuple(replace(ranked, prediction=whole[id(ranked.prediction)]) for ranked in shown)


def of_all_stages(plan: Plan, prediction: Prediction) -> Prediction:
    """A prediction with the memory of every stage of its plan."""
    if len(prediction.memory.stages) == plan.layout.pp:
        return prediction
    return replace(prediction, memory=predict_memory(plan))
