"""The prediction of a plan: views of its inventory as memory, time and cost."""

from shardwise.plan import Plan
from shardwise.predict.assumptions import plan_assumptions
from shardwise.predict.cost import predict_cost, running_cost
from shardwise.predict.exposed import exposed_communication
from shardwise.predict.memory import predict_memory
from shardwise.predict.time import predict_time
from shardwise.prediction import MemoryPrediction, Prediction, Throughput, TimePrediction

__all__ = ["exposed_communication", "predict"]


def predict(
    plan: Plan,
    *,
    memory: MemoryPrediction | None = None,
    time: tuple[TimePrediction, Throughput] | None = None,
) -> Prediction:
    """What a plan will need, how fast it will run and, when it names tokens, what that costs.

    The plan is valid by ``shardwise.rules``; nothing is checked again here.

    Args:
        plan: what to predict.
        memory: the plan's own, where it was asked for before.
        time: the same of its step time and the rates that follow from it.
    """
    step, throughput = time or predict_time(plan)
    return Prediction(
        memory=memory or predict_memory(plan),
        time=step,
        throughput=throughput,
        cost=predict_cost(plan=plan, time=step, throughput=throughput),
        running_cost=running_cost(plan, throughput),
        assumptions=plan_assumptions(plan),
    )
