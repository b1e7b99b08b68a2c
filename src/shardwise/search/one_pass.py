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
BORDERLINE_FRACTION, BORDERLINE_PENALTY = 0.90, 1.05
TIGHT_FRACTION, TIGHT_PENALTY = 0.97, 1.10
"""A candidate whose memory bound takes this share of the device has to be this much faster to be predicted first: the
memory band reaches beyond the device, or the bound already promises a plan that runs out."""
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
        first, second = _orders(rows, step_s, floor_bytes / capacity_bytes, question=question, objective=objective)
        num_families = len(np.unique(group_rows([rows.column(name) for name in FAMILY])[0]))
        per_family = max(MIN_PER_FAMILY, bounds.max_predictions // num_families)
        evaluator.walk(first, max_fitting=bounds.max_predictions, max_per_family=per_family)
        evaluator.walk(second, max_fitting=OTHER_END, max_per_family=OTHER_END)
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


def _orders(
    rows: Candidates, step_s: FloatColumn, floor_share: FloatColumn, *, question: Plan, objective: Objective
) -> tuple[IntColumn, IntColumn]:
    """What the objective asks for first, and the other end of the Pareto front."""
    zero_stage = OFFERS[question.engine].default_zero_stage
    by_memory = best_first(floor_share, rows, default_zero_stage=zero_stage)
    by_memory = by_memory[step_s[by_memory] <= SLOWEST_RATIO * step_s.min()]
    borderline = np.where(floor_share > BORDERLINE_FRACTION, BORDERLINE_PENALTY, 1.0)
    penalty = np.where(floor_share > TIGHT_FRACTION, TIGHT_PENALTY, borderline)
    by_time = best_first(step_s * penalty, rows, resolution=RESOLUTION, default_zero_stage=zero_stage)
    return (by_memory, by_time) if objective == "memory" else (by_time, by_memory)
