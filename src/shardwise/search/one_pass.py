"""One pass over the space of a question: enumerate, drop what breaks a rule or cannot fit, predict the promising."""

from dataclasses import dataclass

import numpy as np

from shardwise.plan import Plan
from shardwise.search.bounds import SearchBounds
from shardwise.search.candidates import OFFLOADS, Candidates, FloatColumn, IntColumn, Mask
from shardwise.search.evaluation import Evaluation, estimate_order, evaluate
from shardwise.search.memory_floor import MemoryFloor
from shardwise.search.probes import Probes
from shardwise.search.records import Objective, Rejection, SearchSpace
from shardwise.search.space import Space
from shardwise.search.time_estimate import TimeEstimate
from shardwise.search.validity import valid_candidates

__all__ = ["Found", "find"]

SMALLEST_FIRST = 12
"""Candidates with the least memory that are predicted as well, for the far end of the Pareto front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one pass over the space found, before ranking."""

    space: SearchSpace
    evaluation: Evaluation
    rejected: tuple[Rejection, ...]
    smallest: Plan | None
    """The valid candidate with the lowest memory bound."""


def find(question: Plan, bounds: SearchBounds, *, objective: Objective = "step_time") -> Found:
    """One pass: all candidates with one offload mode, the best of them predicted."""
    offload = bounds.offload[0] if bounds.offload else question.recipe.offload
    space = Space(question=question, bounds=bounds, offload=OFFLOADS.index(offload))
    probes = Probes(question=question)
    floor, capacity_bytes = MemoryFloor(probes=probes), question.cluster.gpu.memory_bytes
    smallest = _Smallest()

    def states_fit(rows: Candidates) -> Mask:
        states = floor.state_bytes(rows)
        smallest.offer(rows, states)
        fits: Mask = states <= capacity_bytes
        return fits

    valid = valid_candidates(space, states_fit=states_fit)
    floor_bytes = floor.device_bytes(valid.rows, num_microbatches=valid.num_microbatches)
    smallest.offer(valid.rows, floor_bytes)
    small = floor_bytes <= capacity_bytes
    rows, floor_bytes = valid.rows.take(small), floor_bytes[small]
    order = _order(rows, floor_bytes, valid.num_microbatches[small], probes=probes, objective=objective)
    evaluation = evaluate(
        rows, order=order, floor_bytes=floor_bytes, question=question, max_predictions=bounds.max_predictions
    )
    num_too_big = valid.num_too_big + int(np.count_nonzero(~small)) + evaluation.num_too_big
    num_fitting = len(evaluation.fitting)
    num_valid = valid.num_too_big + len(valid.rows)
    return Found(
        space=SearchSpace(
            layouts_considered=valid.considered,
            layouts_invalid=valid.considered - num_valid,
            layouts_too_big=num_too_big,
            layouts_slower=num_valid - num_too_big - num_fitting,
            layouts_predicted=num_fitting,
            layouts_feasible=num_valid - num_too_big,
            wall_s=0.0,
        ),
        evaluation=evaluation,
        rejected=valid.rejected,
        smallest=smallest.plan(question),
    )


class _Smallest:
    """Remembers the candidate with the lowest memory bound, for when nothing fits."""

    def __init__(self) -> None:
        self._rows: Candidates | None = None
        self._row = 0

    def offer(self, rows: Candidates, num_bytes: FloatColumn) -> None:
        """Later offers know more axes and replace earlier ones."""
        if len(rows):
            self._rows, self._row = rows, int(np.argmin(num_bytes))

    def plan(self, question: Plan) -> Plan | None:
        """The smallest candidate; ``None`` when every one breaks a rule."""
        return None if self._rows is None else self._rows.plan(self._row, question=question)


def _order(
    rows: Candidates, floor_bytes: FloatColumn, num_microbatches: IntColumn, *, probes: Probes, objective: Objective
) -> IntColumn:
    """The rows in the order they are predicted: the most promising first, after a few with the least memory."""
    by_memory = estimate_order(floor_bytes, rows)
    if objective == "memory":
        return by_memory
    by_time = estimate_order(TimeEstimate(probes=probes).step_s(rows, num_microbatches=num_microbatches), rows)
    smallest = by_memory[:SMALLEST_FIRST]
    order: IntColumn = np.concatenate([smallest, by_time[~np.isin(by_time, smallest)]])
    return order
