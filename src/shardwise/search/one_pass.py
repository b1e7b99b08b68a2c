"""One pass over the space of a question: enumerate, drop what breaks a rule or cannot fit, predict the promising."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardwise.plan import Plan
from shardwise.rules import OFFERS, find_errors
from shardwise.search.bounds import SearchBounds
from shardwise.search.candidates import OFFLOADS, RECOMPUTES, Candidates, FloatColumn, IntColumn, Mask, group_rows
from shardwise.search.evaluation import FAMILY, Evaluation, Evaluator, best_first
from shardwise.search.memory_floor import MemoryFloor
from shardwise.search.probes import Probes
from shardwise.search.records import Objective, Rejection, SearchSpace
from shardwise.search.space import Space
from shardwise.search.time_estimate import TimeEstimate
from shardwise.search.validity import ValidCandidates, valid_candidates

__all__ = ["Found", "find"]

OTHER_END = 8
"""Candidates with the least memory that are predicted as well, for the far end of the Pareto front."""
SLOWEST_RATIO = 2.0
"""How many times slower than the fastest such a candidate may be and still be of interest."""
SCOUTED_RATIO, SCOUTS = 1.15, 2
"""Of every kind of variant whose estimate comes this close to the fastest, so many are predicted first: what the
estimate misjudges about all of a kind is corrected by them."""
RESOLUTION = 0.005
"""Estimates closer than this are ordered by simplicity."""
TRIED_SMALLEST = 64
"""Candidates that are checked for one that breaks no rule, when nothing fits."""
MIN_PER_FAMILY = 2
"""Variants (schedule, ZeRO stage, micro-batch, recompute) predicted for one set of degrees, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What one pass over the space found, before ranking."""

    space: SearchSpace
    evaluation: Evaluation
    rejected: tuple[Rejection, ...]
    smallest: Plan | None
    """The candidate with the lowest memory bound, when nothing fits."""


def find(question: Plan, bounds: SearchBounds, *, objective: Objective = "step_time") -> Found:
    """One pass: all candidates with one offload mode, the best of them predicted."""
    offload = bounds.offload[0] if bounds.offload else question.recipe.offload
    space = Space(question=question, bounds=bounds, offload=OFFLOADS.index(offload))
    probes = Probes(question=question)
    floor, capacity_bytes = MemoryFloor(probes=probes), question.cluster.gpu.memory_bytes
    dropped: list[Candidates] = []

    def states_fit(rows: Candidates) -> Mask:
        dropped.append(_frugal(rows, bounds))
        fits: Mask = floor.state_bytes(rows) <= capacity_bytes
        return fits

    valid = valid_candidates(space, states_fit=states_fit)
    floor_bytes = floor.device_bytes(valid.rows, num_microbatches=valid.num_microbatches)
    small = floor_bytes <= capacity_bytes
    rows, floor_bytes = valid.rows.take(small), floor_bytes[small]
    evaluator = Evaluator(rows, floor_bytes=floor_bytes, question=question)
    if len(rows):
        step_s = TimeEstimate(probes=probes).step_s(rows, num_microbatches=valid.num_microbatches[small])
        order = _Order(rows=rows, step_s=step_s, floor_bytes=floor_bytes, question=question)
        _predict_promising(evaluator, order, limit=bounds.max_predictions, objective=objective)
        if not evaluator.num_fitting:
            evaluator.walk(order.smallest(), max_fitting=OTHER_END, max_per_family=OTHER_END)
    evaluation = evaluator.result()
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
        smallest=None if evaluation.fitting else _smallest(floor, valid, dropped),
    )


def _smallest(floor: MemoryFloor, valid: ValidCandidates, dropped: Sequence[Candidates]) -> Plan | None:
    """The candidate with the lowest memory bound, for when nothing fits; ``None`` when every one breaks a rule."""
    question = floor.probes.question
    rows, counts = valid.rows, valid.num_microbatches
    if not len(rows) and dropped:
        rows = dropped[0]
        counts = np.maximum(1, question.global_batch_size // rows.data_parallel_size)
    if not len(rows):
        return None
    by_need = np.argsort(floor.device_bytes(rows, num_microbatches=counts), kind="stable")
    for row in by_need[:TRIED_SMALLEST]:
        plan = rows.plan(int(row), question=question)
        for candidate in (plan, replace(plan, layout=replace(plan.layout, sequence_parallel=False))):
            if not find_errors(candidate):
                return candidate
    return None


def _frugal(rows: Candidates, bounds: SearchBounds) -> Candidates:
    """Rows whose axes are not all known yet, with the choices that need least memory in the missing ones."""
    deepest = max((RECOMPUTES.index(name) for name in bounds.recompute or RECOMPUTES), default=0)
    divides = bounds.sequence_parallel is not False
    return replace(
        rows,
        recompute=np.full(len(rows), deepest, dtype=np.int64),
        sequence_parallel=((rows.tp > 1) & divides).astype(np.int64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """Orders in which rows are worth predicting."""

    rows: Candidates
    step_s: FloatColumn
    floor_bytes: FloatColumn
    question: Plan

    @property
    def _zero_stage(self) -> int:
        return OFFERS[self.question.engine].default_zero_stage

    def by_time(self, step_s: FloatColumn) -> IntColumn:
        """The fastest first."""
        return best_first(
            step_s,
            self.rows,
            resolution=RESOLUTION,
            default_zero_stage=self._zero_stage,
            gpus_per_node=self.question.cluster.node.gpus_per_node,
        )

    def smallest(self) -> IntColumn:
        """The least memory first, however slow."""
        return best_first(self.floor_bytes, self.rows, default_zero_stage=self._zero_stage)

    def by_memory(self) -> IntColumn:
        """The least memory first, without what is far too slow."""
        order = self.smallest()
        near: IntColumn = order[self.step_s[order] <= SLOWEST_RATIO * self.step_s.min()]
        return near

    @property
    def num_families(self) -> int:
        """Sets of degrees."""
        return len(np.unique(group_rows([self.rows.column(name) for name in FAMILY])[0]))


def _predict_promising(evaluator: Evaluator, order: _Order, *, limit: int, objective: Objective) -> None:
    """Scouts of every kind, then what the objective asks for, then the other end of the Pareto front."""
    per_family = max(MIN_PER_FAMILY, limit // order.num_families)
    if objective == "memory":
        evaluator.walk(order.by_memory(), max_fitting=limit, max_per_family=per_family)
        evaluator.walk(order.by_time(order.step_s), max_fitting=OTHER_END, max_per_family=OTHER_END)
        return
    fast = order.by_time(order.step_s)
    near = fast[order.step_s[fast] <= SCOUTED_RATIO * order.step_s.min()]
    evaluator.scout(near, per_kind=SCOUTS)
    rest = max(MIN_PER_FAMILY, limit - evaluator.num_fitting)
    corrected = order.by_time(evaluator.corrected(order.step_s))
    evaluator.walk(corrected, max_fitting=rest, max_per_family=per_family)
    evaluator.walk(order.by_memory(), max_fitting=OTHER_END, max_per_family=OTHER_END)
