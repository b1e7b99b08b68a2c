"""The predictions that an answer shows, with the memory of every stage."""

from collections.abc import Sequence
from dataclasses import replace

from shardwise.plan import Plan
from shardwise.predict.memory import predict_memory
from shardwise.prediction import MemoryPrediction, Prediction
from shardwise.search.records import RankedPlan
from shardwise.search.team import ALONE, Team

__all__ = ["of_all_stages", "with_all_stages"]


def with_all_stages(shown: Sequence[RankedPlan], *, team: Team = ALONE) -> tuple[RankedPlan, ...]:
    """Ranked plans with the memory of every stage; to be ranked they needed that of the fullest ones."""
    # A plan may be shown twice: in the ranking and on the front.
    distinct = list({id(ranked.prediction): ranked for ranked in shown}.values())
    memories = team.each(lambda at: _of_all_stages(distinct[at].plan, distinct[at].prediction), range(len(distinct)))
    memory_of = {id(ranked.prediction): memory for ranked, memory in zip(distinct, memories, strict=True)}
    return tuple(
        replace(ranked, prediction=replace(ranked.prediction, memory=memory_of[id(ranked.prediction)]))
        for ranked in shown
    )


def of_all_stages(plan: Plan, prediction: Prediction) -> Prediction:
    """A prediction with the memory of every stage of its plan."""
    return replace(prediction, memory=_of_all_stages(plan, prediction))


def _of_all_stages(plan: Plan, prediction: Prediction) -> MemoryPrediction:
    memory = prediction.memory
    return memory if len(memory.stages) == plan.layout.pp else predict_memory(plan)
