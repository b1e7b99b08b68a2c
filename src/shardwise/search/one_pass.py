"""One pass over the space of a question: enumerate, drop what cannot be or cannot fit, estimate, predict the best."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from shardwise.engines.table import ENGINES
from shardwise.errors import RecipeError
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.memory import predict_fullest_memory
from shardwise.predict.memory_band import memory_band
from shardwise.rules import find_errors
from shardwise.search.bounds import SearchBounds
from shardwise.search.candidates import Candidates, FloatColumn, IntColumn, group_rows
from shardwise.search.evaluation import FAMILY, KIND, Evaluation, Evaluator, best_first
from shardwise.search.idle_switches import without_idle_switches
from shardwise.search.pool import Pool
from shardwise.search.price_list import MAX_LOSS_FRACTION, num_untried, price_fraction
from shardwise.search.records import Objective, Rejection, SearchSpace
from shardwise.search.screening import screen
from shardwise.search.simplicity import short_variant
from shardwise.search.space import Space
from shardwise.search.uneven_stages import spread_ratio
from shardwise.units import format_gib

__all__ = ["TOO_BIG", "Found", "find"]

TOO_BIG = "memory-capacity"
"""The group of layouts that break no rule and do not fit."""
FITTING_FIX = "take one that fits, or what would make one fit"
TOP_UPS = 3
"""Rounds of predicting one more variant of further degrees, until there are as many layouts as are shown."""
OTHER_END = 4
"""Rows along the front of time and memory that are predicted besides the fastest."""
SPREAD = 3
"""Pipelines, the fastest, that are tried with uneven stages."""
MADE_SAFE = 3
"""Sets of degrees, the fastest whose plan lies at the edge of the device, that are tried with more recomputation."""
EVERY_KIND = 2
"""Kinds of tensors that may move to the host: states and activations."""
MOVED = 2
"""Rows predicted that are fast because they keep one of the kinds on the host, and as many because they keep both."""
CORRECTIONS, CORRECTED = 2, 2
"""Rounds of predicting, when all else is, those few rows that a correction by it puts before the fastest."""
SAFE_TRIES = 8
"""Rows, the fastest whose estimated band lies within the device, among which one is looked for that fits safely."""
CHEAPER = 3
"""Sets of degrees that are predicted because they may be recommended for what they do without."""
EACH_KIND_RATIO, OF_EACH_KIND = 1.1, 1
"""Largest ratio of an estimate to the fastest one at which a kind of variant is tried first, and the number of its
variants that are predicted then: they correct what the estimate misjudges about all variants of the kind."""
RESOLUTION = 0.005
"""Estimates closer than this are ordered by simplicity."""
LEAST_SHOWN = 10
"""Sets of degrees that are predicted however few are shown, so that a shorter answer recommends the same."""
MIN_PER_FAMILY = 2
"""Variants (schedule, ZeRO stage, micro-batch, recompute) predicted for one set of degrees, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The plans that one pass over the space found, before ranking, and why the other candidates are none."""

    space: SearchSpace
    evaluation: Evaluation
    rejected: tuple[Rejection, ...]
    smallest: Plan | None
    """The candidate that needs the least memory, when nothing fits."""


def find(
    question: Plan,
    bounds: SearchBounds,
    *,
    objective: Objective = "step_time",
    is_brief: bool = False,
) -> Found:
    """All candidates in every precision that may be used, the best of them predicted.

    Args:
        question: a plan whose layout is ignored.
        bounds: limits of the space.
        objective: what is to be small.
        is_brief: predict the fastest only, without other kinds and the front of time and memory.

    Raises:
        RecipeError: a rule excludes the question whatever the layout, in every precision.
    """
    question = replace(question, layout=Layout(stage_layers=bounds.stage_layers))
    precisions = bounds.precision or (question.recipe.precision,)
    parts: list[Found] = []
    for precision in precisions:
        asked = replace(question, recipe=replace(question.recipe, precision=precision))
        try:
            parts.append(_find(asked, bounds, objective, is_brief=is_brief))
        except RecipeError:
            if precision == precisions[-1] and not parts:
                raise
    return parts[0] if len(parts) == 1 else _merged(parts)


def _merged(parts: Sequence[Found]) -> Found:
    """The results of one pass per precision, merged into one."""
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


def _find(question: Plan, bounds: SearchBounds, objective: Objective, *, is_brief: bool) -> Found:
    """One pass in one precision."""
    space = Space(question=question, bounds=bounds)
    found = screen(question, bounds, objective=objective)
    evaluator = Evaluator(found.pool, question=question)
    if len(found.pool):
        order = _Order(pool=found.pool, step_s=found.step_s, question=question, least_offload=space.least_offload)
        if is_brief:
            evaluator.walk(order.by_time(order.step_s), max_fitting=bounds.max_predictions, max_per_family=1)
        else:
            _predict_candidates(evaluator, order, bounds=bounds, objective=objective)
            evaluator.spread_unevenly(most=SPREAD)
            if objective != "memory":
                _predict_corrected(evaluator, order)
                evaluator.recompute_safely(space=space, most=MADE_SAFE)
        if not evaluator.num_fitting:
            evaluator.walk(order.smallest(), max_fitting=OTHER_END, max_per_family=OTHER_END)
    evaluation = evaluator.result()
    evaluation = replace(evaluation, fitting=without_idle_switches(evaluation.fitting, space=space))
    num_fitting = len(evaluation.fitting)
    num_considered = found.valid.considered + evaluation.num_uneven
    num_valid = found.num_valid + evaluation.num_uneven
    # Rows that nothing was predicted of were compared with those that fit; where none does, they are too big as well.
    num_too_big = found.num_too_big + evaluation.num_too_big if num_fitting else num_valid
    rejected = list(found.valid.rejected)
    if not is_brief:
        rejected += _too_big(question, found.too_big, evaluation, count=num_too_big)
    return Found(
        space=SearchSpace(
            layouts_considered=num_considered,
            layouts_invalid=found.valid.considered - found.num_valid,
            layouts_too_big=num_too_big,
            layouts_slower=num_valid - num_too_big - num_fitting,
            layouts_evaluated=found.num_evaluated,
            layouts_predicted=num_fitting,
            layouts_feasible=num_valid - num_too_big,
            wall_s=0.0,
        ),
        evaluation=evaluation,
        rejected=tuple(sorted(rejected, key=lambda group: (-group.count, group.rule))),
        smallest=None if evaluation.fitting else _smallest(question, found.smallest()),
    )


def _too_big(question: Plan, nearest: Candidates, evaluation: Evaluation, *, count: int) -> Iterator[Rejection]:
    """The group of layouts that do not fit, with the one that lacks least as the example."""
    plans = nearest.plans(range(len(nearest)), question=question)
    if not plans and evaluation.nearest is not None:
        plans = [evaluation.nearest[0]]
    if not count or not plans:
        return
    memory = predict_fullest_memory(plans[0])
    needed, capacity = format_gib(memory.needed_bytes), format_gib(memory.capacity_bytes)
    example = f"{short_variant(plans[0])}: needs {needed} per GPU of {capacity}"
    yield Rejection(rule=TOO_BIG, count=count, example=example, fix=FITTING_FIX)


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
    least_offload: int

    @property
    def _zero_stage(self) -> int:
        return ENGINES[self.question.engine].default_zero_stage

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

    def fitting_safely(self, rows: IntColumn) -> IntColumn:
        """The rows whose memory band is estimated to lie within the device."""
        _, high_fraction = memory_band(self.pool.rows.take(rows).columns(self.question))
        is_safe = self.pool.needed_bytes[rows] * high_fraction <= self.question.cluster.gpu.memory_bytes
        chosen: IntColumn = rows[is_safe]
        return chosen

    def cheaper(self, estimate: FloatColumn, evaluator: Evaluator) -> IntColumn:
        """Rows that would be recommended before all safe ones predicted so far, if they fit safely, the best first."""
        known = evaluator.safe
        if not known:
            return self.pool.num_microbatches[:0]
        price: FloatColumn = np.broadcast_to(price_fraction(self.pool.rows.columns(self.question)), (len(self.pool),))
        priced_s = (1 + price) * estimate
        least_s = min(found.priced_s for found in known)
        tried = min(known, key=lambda found: num_untried(found.plan))
        reach_s = (1 + MAX_LOSS_FRACTION) * tried.prediction.time.step_s
        rows = self.by_time(priced_s)
        chosen: IntColumn = rows[(priced_s[rows] < least_s) & (estimate[rows] <= reach_s)]
        return chosen

    def along_front(self) -> IntColumn:
        """Rows that no estimate beats in both time and memory, from both ends of the front to its middle."""
        order = self.by_time(self.step_s)
        needed = self.pool.needed_bytes[order]
        least = np.minimum.accumulate(needed)
        front = order[np.concatenate([[True], needed[1:] < least[:-1]])]
        count = min(OTHER_END, len(front))
        spread = {round(position) for position in np.linspace(0, len(front) - 1, count).tolist()}
        chosen: IntColumn = front[sorted(spread, reverse=True)]
        return chosen

    @property
    def spread_ratios(self) -> FloatColumn:
        """Work of each row's heaviest stage with blocks spread unevenly, over that with an even spread; 1 at most."""
        rows = self.pool.rows
        if self.question.layout.stage_layers is not None:
            return np.ones(len(rows))
        groups, first = group_rows([rows.pp, rows.vpp, rows.schedule])
        plans = rows.plans(first.tolist(), question=self.question)
        found: FloatColumn = np.asarray([spread_ratio(plan) for plan in plans])[groups]
        return found

    @property
    def kinds_moved(self) -> IntColumn:
        """Number of kinds of tensors (states, activations) that each row keeps on the host without having to."""
        rows = self.pool.rows
        least = rows.activation_offload.min(initial=1)
        kinds: IntColumn = np.add(rows.offload > self.least_offload, rows.activation_offload > least, dtype=np.int64)
        return kinds

    @property
    def num_families(self) -> int:
        """Sets of degrees."""
        return len(group_rows([self.pool.rows.column(name) for name in FAMILY])[1])


def _predict_candidates(evaluator: Evaluator, order: _Order, *, bounds: SearchBounds, objective: Objective) -> None:
    """A few of every kind, then what the objective asks for, then the front of time and memory."""
    limit = bounds.max_predictions
    per_family = max(MIN_PER_FAMILY, limit // order.num_families)
    if objective == "memory":
        evaluator.walk(order.smallest(), max_fitting=limit, max_per_family=per_family)
        evaluator.walk(order.by_time(order.step_s), max_fitting=OTHER_END, max_per_family=OTHER_END)
        return
    fast = order.by_time(order.step_s)
    kinds_moved = order.kinds_moved[fast]
    own = fast[kinds_moved == kinds_moved.min(initial=EVERY_KIND)]
    near = own[order.step_s[own] <= EACH_KIND_RATIO * order.step_s[own].min()]
    evaluator.predict_each_kind(near, per_kind=OF_EACH_KIND)
    rest = max(MIN_PER_FAMILY, limit - evaluator.num_fitting)
    corrected = order.by_time(evaluator.corrected(order.step_s))
    corrected = corrected[np.isin(corrected, own)]
    evaluator.walk(corrected, max_fitting=rest, max_per_family=per_family)
    for _ in range(TOP_UPS):
        missing = min(max(bounds.max_plans, LEAST_SHOWN), limit) - evaluator.num_families
        evaluator.walk(corrected, max_fitting=missing, max_per_family=1)
    evaluator.find_safe(order.fitting_safely(corrected)[:SAFE_TRIES])
    for _ in range(CORRECTIONS):
        cheaper = order.cheaper(evaluator.corrected(order.step_s), evaluator)
        evaluator.walk(order.fitting_safely(cheaper), max_fitting=CHEAPER, max_per_family=1)
        evaluator.walk(cheaper, max_fitting=CHEAPER, max_per_family=1)
    moving = order.by_time(evaluator.corrected(order.step_s))
    for kinds in range(1, 1 + EVERY_KIND):
        evaluator.walk(moving[order.kinds_moved[moving] == kinds], max_fitting=MOVED, max_per_family=1)
    evaluator.walk(order.along_front(), max_fitting=OTHER_END, max_per_family=OTHER_END)


def _predict_corrected(evaluator: Evaluator, order: _Order) -> None:
    """Rows that their estimate, as it is corrected by now, puts clearly before the fastest: first other variants of
    degrees that were predicted, then pipelines that uneven stages may make faster.
    """
    even = np.ones(len(order.pool))
    for ratios in (*[even] * CORRECTIONS, order.spread_ratios):
        by_kind, by_degrees = (evaluator.corrected(order.step_s, by=names) for names in (KIND, FAMILY))
        hoped_s = np.minimum(by_kind, by_degrees) * ratios
        rows = order.by_time(hoped_s)
        rows = rows[(hoped_s[rows] < (1 - RESOLUTION) * evaluator.fastest_s) & evaluator.is_open[rows]]
        evaluator.walk(rows, max_fitting=CORRECTED, max_per_family=CORRECTED)
        evaluator.spread_unevenly(most=CORRECTED)
