"""A changed question, tried by searching it: what is proposed where the one that was asked has no plan."""

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.errors import ShardwiseError
from shardwise.plan import Plan
from shardwise.search.bounds import SearchBounds
from shardwise.search.one_pass import find
from shardwise.search.records import Relief

AT_THE_EDGE = "fits at the edge: try it first"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """A question with one change, and what its plan would cost besides."""

    change: str
    question: Plan
    bounds: SearchBounds
    caution: str = ""


def tried(hypothesis: Hypothesis) -> Relief | None:
    """The fastest plan of a changed question that fits safely, of all where none does; ``None`` when it has none."""
    try:
        fitting = find(hypothesis.question, hypothesis.bounds, is_brief=True).evaluation.fitting
    except ShardwiseError:  # the bounds leave no layout of the other cluster, model or batch
        return None
    if not fitting:
        return None
    best = min(fitting, key=lambda found: (found.prediction.memory.is_borderline, found.prediction.time.step_s))
    cautions = [hypothesis.caution, AT_THE_EDGE if best.prediction.memory.is_borderline else ""]
    return Relief(
        change=hypothesis.change,
        plan=best.plan,
        device_used_bytes=best.prediction.memory.worst.device_used_bytes,
        needed_bytes=best.prediction.memory.needed_bytes,
        step_s=best.prediction.time.step_s,
        caution=", ".join(filter(None, cautions)),
    )


def free_axes(question: Plan, bounds: SearchBounds) -> Iterator[Hypothesis]:
    """The same question without the user's bounds on axes, if there are any."""
    if bounds != bounds.without_axes:
        yield Hypothesis(change="no bounds on the axes", question=question, bounds=bounds.without_axes)
