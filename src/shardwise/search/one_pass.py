"""One pass over the space of a question: enumerate, drop what cannot be or cannot fit, estimate, predict the best."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from shardwise.errors import RecipeError
from shardwise.plan import Plan
from shardwise.rules import OFFERS, find_errors
from shardwise.search.bounds import SearchBounds
from shardwise.search.candidates import RECOMPUTES, Candidates, FloatColumn, IntColumn, Mask, group_rows
from shardwise.search.evaluation import FAMILY, Evaluation, Evaluator, best_first
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.pool import Pool, fewest_recomputed, highest_choice, least_offloaded, lowest_choice
from shardwise.search.probes import Probes
from shardwise.search.records import Objective, Rejection, SearchSpace
from shardwise.search.refinement import ESTIMATED, Known, Refinement, Wanted
from shardwise.search.space import Space
from shardwise.search.time_estimate import TimeEstimate
from shardwise.search.validity import ValidCandidates, valid_candidates

__all__ = ["Estimates", "Found", "estimate_space", "find"]

WANTED: dict[Objective, Wanted] = {
    "step_time": Wanted(within_ratio=1.1, front_ratio=1.3),
    "cost": Wanted(within_ratio=1.1, front_ratio=1.3),
    "fewest_gpus": Wanted(within_ratio=1.1, front_ratio=1.3),
    "memory": Wanted(within_ratio=1.02, front_ratio=16.0, front_step_fraction=0.005),
}
"""What is estimated to the end: all that the prediction could still rank first, and the front of time and memory."""
MADE_TO_FIT_RATIO = 1.02
"""How far above the fastest estimate the bound of a row may be for it to be worth making it fit."""
SMALL_SPACE, SMALL_RATIO = 30_000, 1.5
"""In a space of so few rows estimates cost little, and more of them are needed to show different layouts."""
TOP_UPS = 3
"""Rounds of predicting one more variant of further degrees, until there are as many layouts as are shown."""
OTHER_END = 4
"""Rows along the front of time and memory that are predicted besides the fastest."""
MOVED = 2
"""Rows predicted that are fast because they keep states or activations on the host."""
SCOUTED_RATIO, SCOUTS = 1.1, 1
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
    """The candidate that needs the least memory, when nothing fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """The rows of a space that fit and are estimated, and what became of the others."""

    pool: Pool
    step_s: FloatColumn
    valid: ValidCandidates
    num_valid: int
    """Decorated rows that break no rule."""
    num_too_big: int
    """Decorated rows that are known to need more than the device."""
    num_evaluated: int
    """Decorated rows whose memory was computed one by one."""
    smallest: Candidates
    """A few rows that need the least memory."""


def find(question: Plan, bounds: SearchBounds, *, objective: Objective = "step_time") -> Found:
    """All candidates in every precision that may be used, the best of them predicted.

    Raises:
        RecipeError: a rule excludes the question whatever the layout, in every precision.
    """
    precisions = bounds.precision or (question.recipe.precision,)
    parts: list[Found] = []
    for precision in precisions:
        asked = replace(question, recipe=replace(question.recipe, precision=precision))
        try:
            parts.append(_find(asked, bounds, objective))
        except RecipeError:
            if precision == precisions[-1] and not parts:
                raise
    return parts[0] if len(parts) == 1 else _merged(parts)


def _merged(parts: Sequence[Found]) -> Found:
    """What passes over several precisions found, as one."""
    names = [field.name for field in fields(SearchSpace)]
    rejected: dict[str, Rejection] = {}
    for group in (group for part in parts for group in part.rejected):
        before = rejected.get(group.rule)
        rejected[group.rule] = replace(before, count=before.count + group.count) if before else group
    nearest = [part.evaluation.nearest for part in parts if part.evaluation.nearest is not None]
    fitting = tuple(found for part in parts for found in part.evaluation.fitting)
    return Found(
        space=SearchSpace(**{name: sum(getattr(part.space, name) for part in parts) for name in names}),
        evaluation=Evaluation(
            fitting=fitting,
            num_too_big=sum(part.evaluation.num_too_big for part in parts),
            nearest=min(nearest, key=lambda found: found[1].needed_bytes) if nearest and not fitting else None,
        ),
        rejected=tuple(sorted(rejected.values(), key=lambda group: (-group.count, group.rule))),
        smallest=next((part.smallest for part in parts if part.smallest is not None), None),
    )


def _find(question: Plan, bounds: SearchBounds, objective: Objective) -> Found:
    """One pass in one precision."""
    found = estimate_space(question, bounds, objective=objective)
    evaluator = Evaluator(found.pool.rows, question=question)
    if len(found.pool):
        order = _Order(pool=found.pool, step_s=found.step_s, question=question)
        _predict_promising(evaluator, order, bounds=bounds, objective=objective)
        if not evaluator.num_fitting:
            evaluator.walk(order.smallest(), max_fitting=OTHER_END, max_per_family=OTHER_END)
    evaluation = evaluator.result()
    num_fitting = len(evaluation.fitting)
    num_too_big = found.num_too_big + evaluation.num_too_big
    return Found(
        space=SearchSpace(
            layouts_considered=found.valid.considered,
            layouts_invalid=found.valid.considered - found.num_valid,
            layouts_too_big=num_too_big,
            layouts_slower=found.num_valid - num_too_big - num_fitting,
            layouts_evaluated=found.num_evaluated,
            layouts_predicted=num_fitting,
            layouts_feasible=found.num_valid - num_too_big,
            wall_s=0.0,
        ),
        evaluation=evaluation,
        rejected=found.valid.rejected,
        smallest=None if evaluation.fitting else _smallest(question, found.smallest),
    )


def estimate_space(
    question: Plan, bounds: SearchBounds, *, objective: Objective = "step_time", wanted: Wanted | None = None
) -> Estimates:
    """Enumerate the space and estimate the rows that matter.

    Args:
        question: a plan whose layout is ignored.
        bounds: limits of the space.
        objective: what is to be small, which decides how far rows are estimated.
        wanted: how far instead.
    """
    limits = wanted or WANTED[objective]
    space, capacity_bytes = Space(question=question, bounds=bounds), question.cluster.gpu.memory_bytes
    memory = MemoryEstimate(probes=Probes(question=question))
    estimate = TimeEstimate(memory=memory)
    dropped: list[Candidates] = []

    def states_fit(rows: Candidates) -> np.ndarray:
        dropped.append(rows)
        moved = replace(rows, offload=highest_choice(rows))
        return memory.states.worst_bytes(moved) <= capacity_bytes

    valid = valid_candidates(space, states_fit=states_fit)
    num_valid = valid.num_too_big + int(space.num_decorations(valid.rows).sum())
    plain = replace(valid.rows, offload=lowest_choice(valid.rows)) if len(valid.rows) else valid.rows
    rows = space.decorate(plain)
    every = Pool.of(rows, np.repeat(valid.num_microbatches, len(space.recomputes)), memory)
    fits = every.needed_bytes <= capacity_bytes
    own, too_big = every.take(fits), every.take(~fits)
    first = Refinement(estimate, own.rows, own.num_microbatches)
    if len(rows) <= SMALL_SPACE and wanted is None:
        limits = replace(limits, within_ratio=max(SMALL_RATIO, limits.within_ratio))
    first.run(limits, needed_bytes=own.needed_bytes)
    known = first.estimated()
    is_content = objective == "memory" and len(known.step_s) > 0
    more = _made_to_fit(space, estimate, too_big.take(np.zeros(0, dtype=np.int64)) if is_content else too_big, known)
    second = Refinement(estimate, more.rows, more.num_microbatches)
    second.run(limits, needed_bytes=more.needed_bytes, known=known)
    kept = [np.flatnonzero(part.level == ESTIMATED) for part in (first, second)]
    layers = space.most_layers(too_big.rows) if space.counts_layers else np.ones(len(too_big), dtype=np.int64)
    stands_for = np.where(too_big.rows.recompute > 0, layers, 1)
    return Estimates(
        pool=own.take(kept[0]).joined(more.take(kept[1])),
        step_s=np.concatenate([first.step_s[kept[0]], second.step_s[kept[1]]]),
        valid=valid,
        num_valid=num_valid,
        num_too_big=valid.num_too_big + int(stands_for.sum()),
        num_evaluated=len(every) + len(more),
        smallest=_least_memory(every, dropped, space),
    )


def _made_to_fit(space: Space, estimate: TimeEstimate, too_big: Pool, known: Known) -> Pool:
    """Rows that are too big, with some blocks recomputed or with states or activations on the host so that they fit.

    Only those whose bound leaves them in the running without either.
    """
    memory, capacity_bytes = estimate.memory, space.question.cluster.gpu.memory_bytes
    fastest_s = known.step_s[0] if len(known.step_s) else np.inf
    bounds = Refinement(estimate, too_big.rows, too_big.num_microbatches).step_s
    left = too_big.take(bounds <= MADE_TO_FIT_RATIO * fastest_s)
    plain = left.take(left.rows.recompute == RECOMPUTES.index("none"))
    partly = fewest_recomputed(plain, space, memory=memory, capacity_bytes=capacity_bytes)
    moved = least_offloaded(left, space, memory=memory, capacity_bytes=capacity_bytes)
    return partly.joined(moved)


def _least_memory(every: Pool, dropped: list[Candidates], space: Space) -> Candidates:
    """The rows to look at when nothing fits, those that need least first."""
    if len(every):
        order = np.argsort(every.needed_bytes, kind="stable")
        return every.rows.take(order[:TRIED_SMALLEST])
    if not dropped or not len(dropped[0]):
        return every.rows
    rows = dropped[0]
    deepest = np.full(len(rows), max(space.recomputes), dtype=np.int64)
    divides = (rows.tp > 1) & (space.bounds.sequence_parallel is not False)
    frugal = replace(rows, recompute=deepest, sequence_parallel=divides.astype(np.int64), offload=highest_choice(rows))
    memory = MemoryEstimate(probes=Probes(question=space.question))
    counts = np.maximum(1, space.question.global_batch_size // rows.data_parallel_size)
    order = np.argsort(memory.device_bytes(frugal, num_microbatches=counts), kind="stable")
    return frugal.take(order[:TRIED_SMALLEST])


def _smallest(question: Plan, rows: Candidates) -> Plan | None:
    """The first row that breaks no rule; ``None`` when every one does."""
    for row in range(len(rows)):
        plan = rows.plan(row, question=question)
        for candidate in (plan, replace(plan, layout=replace(plan.layout, sequence_parallel=False))):
            if not find_errors(candidate):
                return candidate
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """Orders in which rows are worth predicting."""

    pool: Pool
    step_s: FloatColumn
    question: Plan

    @property
    def _zero_stage(self) -> int:
        return OFFERS[self.question.engine].default_zero_stage

    def by_time(self, step_s: FloatColumn) -> IntColumn:
        """The fastest first."""
        return best_first(
            step_s,
            self.pool.rows,
            resolution=RESOLUTION,
            default_zero_stage=self._zero_stage,
            gpus_per_node=self.question.cluster.node.gpus_per_node,
        )

    def smallest(self) -> IntColumn:
        """The least memory first, however slow."""
        return best_first(self.pool.needed_bytes, self.pool.rows, default_zero_stage=self._zero_stage)

    def along_front(self) -> IntColumn:
        """Rows that no estimate beats in both time and memory, from both ends of the front to its middle."""
        order = self.by_time(self.step_s)
        needed = self.pool.needed_bytes[order]
        least = np.minimum.accumulate(needed)
        front = order[np.concatenate([[True], needed[1:] < least[:-1]])]
        count = min(OTHER_END, len(front))
        spread = np.unique(np.round(np.linspace(0, len(front) - 1, count)).astype(np.int64))[::-1]
        chosen: IntColumn = front[spread]
        return chosen

    @property
    def moves_to_host(self) -> Mask:
        """Rows that keep more on the host than they have to."""
        rows = self.pool.rows
        least = rows.activation_offload.min(initial=1)
        moves: Mask = (rows.offload > lowest_choice(rows)) | (rows.activation_offload > least)
        return moves

    @property
    def num_families(self) -> int:
        """Sets of degrees."""
        return len(group_rows([self.pool.rows.column(name) for name in FAMILY])[1])


def _predict_promising(evaluator: Evaluator, order: _Order, *, bounds: SearchBounds, objective: Objective) -> None:
    """Scouts of every kind, then what the objective asks for, then the front of time and memory."""
    limit = bounds.max_predictions
    per_family = max(MIN_PER_FAMILY, limit // order.num_families)
    if objective == "memory":
        evaluator.walk(order.smallest(), max_fitting=limit, max_per_family=per_family)
        evaluator.walk(order.by_time(order.step_s), max_fitting=OTHER_END, max_per_family=OTHER_END)
        return
    fast = order.by_time(order.step_s)
    moves = order.moves_to_host[fast]
    own = fast[~moves] if not moves.all() else fast
    evaluator.scout(own[order.step_s[own] <= SCOUTED_RATIO * order.step_s[own].min()], per_kind=SCOUTS)
    rest = max(MIN_PER_FAMILY, limit - evaluator.num_fitting)
    corrected = order.by_time(evaluator.corrected(order.step_s))
    corrected = corrected[np.isin(corrected, own)]
    evaluator.walk(corrected, max_fitting=rest, max_per_family=per_family)
    for _ in range(TOP_UPS):
        missing = min(bounds.max_plans, limit) - evaluator.num_families
        evaluator.walk(corrected, max_fitting=missing, max_per_family=1)
    evaluator.walk(fast[moves], max_fitting=MOVED, max_per_family=per_family)
    evaluator.walk(order.along_front(), max_fitting=OTHER_END, max_per_family=OTHER_END)
