"""The predictions that an answer shows, with the memory of every stage."""

from collections.abc import Sequence
from dataclasses import replace

from shardwise.plan import Plan
from shardwise.predict.memory import predict_memory
from shardwise.prediction import Prediction
from shardwise.search.records import RankedPlan
from shardwise.search.team import ALONE, Team

__all__ = ["of_all_stages", "with_all_stages"]


def with_all_stages(shown: Sequence[RankedPlan], *, team: Team = ALONE) -> tuple[RankedPlan, ...]:
    """Ranked plans with the memory of every stage; to be ranked they needed that of the fullest ones."""
    # A plan may be shown twice: in the ranking and on the front.
    distinct = list({id(ranked.prediction): ranked for ranked in shown}.values())
    whole = team.each(lambda at: of_all_stages(distinct[at].plan, distinct[at].prediction), range(len(distinct)))
    whole_of = {id(ranked.prediction): prediction for ranked, prediction in zip(distinct, whole, strict=True)}
    return tuple(replace(ranked, prediction=whole_of[id(ranked.prediction)]) for ranked in shown)


def of_all_stages(plan: Plan, prediction: Prediction) -> Prediction:
    """A prediction with the memory of every stage of its plan."""
    if len(prediction.memory.stages) == plan.layout.pp:
        return prediction
    return replace(prediction, memory=predict_memory(plan))
