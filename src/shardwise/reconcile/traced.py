"""The parts of a predicted step as a trace of it would show them."""

from shardwise.ledger import TimeComponent
from shardwise.plan import Plan
from shardwise.predict.timeline import predict_timeline
from shardwise.predict.timeline_split import split_rank
from shardwise.prediction import Prediction
from shardwise.units import Seconds

SLOWED: tuple[TimeComponent, ...] = ("forward", "backward", "recompute")
"""Components that run slower beside communication."""


def traced_components(plan: Plan, prediction: Prediction) -> dict[TimeComponent, Seconds]:
    """Components of the step with the same sum, communication exposed only while nothing is computed.

    ``predict`` counts as exposed whatever communication makes a step longer, the slowdown of computation beside it
    included. A trace cannot tell that from computation that takes long, so here it belongs to what was slowed.
    Pipelines keep the prediction's parts: what their messages expose is the bubble.
    """
    parts = {entry.component: entry.duration_s for entry in prediction.time.components}
    if plan.layout.pp > 1:
        return parts
    timeline = predict_timeline(plan)
    found = split_rank(timeline.ranks[0].spans, step_s=timeline.step_s)
    exposed_s = min(found.exposed_communication_s, parts["exposed_communication"])
    hidden_s = parts["exposed_communication"] - exposed_s
    slowed_s = sum(parts[name] for name in SLOWED)
    if not slowed_s:
        return parts
    more = {name: parts[name] + hidden_s * parts[name] / slowed_s for name in SLOWED}
    return parts | more | {"exposed_communication": exposed_s}
