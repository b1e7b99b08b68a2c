"""The prediction of a plan: views of its inventory as memory, time and cost."""

from shardwise.plan import Plan
from shardwise.predict.memory import predict_memory
from shardwise.predict.time import predict_time
from shardwise.prediction import Prediction

__all__ = ["predict"]


def predict(plan: Plan) -> Prediction:
    """What a plan will need and how fast it will run; the plan is valid by ``shardwise.rules``."""
    memory = predict_memory(plan)
    time, throughput = predict_time(plan)
    return Prediction(
        memory=memory,
        time=time,
        throughput=throughput,
        cost=None,
        assumptions=plan.model.assumptions + plan.cluster.assumptions,
    )
