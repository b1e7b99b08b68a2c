"""Predicts the candidates that matter: in order of the estimate, skipping what is known not to fit.

Two facts save most predictions. Memory is monotone: when a candidate does not fit, neither does the same candidate with
a larger micro-batch, less recomputation or a lower ZeRO stage. And variants of one set of degrees resemble each other,
so a few of them stand for all.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.predict.memory import predict_fullest_memory
from shardwise.prediction import MemoryPrediction, Prediction
from shardwise.rules import find_errors
from shardwise.search.candidates import (
    RECOMPUTES,
    Candidates,
    FloatColumn,
    IntColumn,
    Key,
    Mask,
    group_rows,
    modules_of,
)
from shardwise.search.pool import Pool
from shardwise.search.price_list import price_fraction
from shardwise.search.safe_recompute import safely_recomputed
from shardwise.search.simplicity import host_moves
from shardwise.search.space import Space
from shardwise.search.uneven_stages import LEAST_GAIN_FRACTION, spread_ratio, uneven_stages

__all__ = ["FAMILY", "KIND", "Evaluated", "Evaluation", "Evaluator", "best_first", "safely_fitting"]

MEMORY_PREDICTIONS_PER_FULL = 6
FAMILY = ("tp", "cp", "pp", "ep", "expert_tp", "dp_replicate", "dp_shard")
KIND = ("schedule", "recompute", "reshard_after_forward")
"""Choices that the closed forms of the estimate may misjudge all in the same direction."""
SPREADS = 2
"""Uneven spreads of one pipeline that are predicted."""
SAFE, BORDERLINE = 0, 1
RECOMPUTE_DEPTH = np.asarray([{"none": 0, "selective": 1, "full": 2}[name] for name in RECOMPUTES])


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A candidate that fits, with its prediction."""

    family: Key
    plan: Plan
    prediction: Prediction
    """Time, and memory of the fullest stages alone; see :func:`shardwise.search.shown.of_all_stages`."""

    @property
    def price_fraction(self) -> float:
        """Sum of the plan's prices, as a share of the step time (:mod:`shardwise.search.price_list`)."""
        return price_fraction(self.plan)

    @property
    def priced_s(self) -> float:
        """Seconds of a step and the price of what the plan combines, by which plans are recommended."""
        return self.prediction.time.step_s * (1 + self.price_fraction)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The outcome of predicting rows in order: the plans that fit, and how many do not."""

    fitting: tuple[Evaluated, ...]
    num_too_big: int
    """Predicted not to fit, or implied by one that was."""
    nearest: tuple[Plan, MemoryPrediction] | None
    """The predicted candidate that misses the device by least, when none fits."""
    num_uneven: int = 0
    """Number of fitting plans with uneven stages; they are not rows of the space."""


class Evaluator:
    """Predicts rows of one space and remembers which are known not to fit."""

    def __init__(self, pool: Pool, *, question: Plan) -> None:
        rows = self._rows = pool.rows
        self._question = question
        self._alive: Mask = np.ones(len(rows), dtype=np.bool_)
        self._fitting: dict[int, Evaluated] = {}
        """Rows that fit, with their predictions."""
        self._uneven: list[Evaluated] = []
        self._spread: set[int] = set()
        """Rows that were tried with uneven stages."""
        self._made_safe: list[Evaluated] = []
        self._memories: dict[int, MemoryPrediction | None] = {}
        """Predicted memory by row, for rows not taken into the result so far; ``None`` for a row that breaks a rule."""
        self._nearest: tuple[Plan, MemoryPrediction] | None = None

    def predict_each_kind(self, order: IntColumn, *, per_kind: int) -> None:
        """Predict the first few rows of every ``KIND`` that fit, each of another set of degrees."""
        kinds = group_rows([self._rows.column(name) for name in KIND])[0]
        for kind in dict.fromkeys(kinds[order].tolist()):
            self.walk(order[kinds[order] == kind], max_fitting=per_kind, max_per_family=1)

    def corrected(self, estimate: FloatColumn, *, by: Sequence[str] = KIND) -> FloatColumn:
        """The estimate times what rows that have the same of some columns were predicted at, the most favourable of
        them."""
        groups = group_rows([self._rows.column(name) for name in by])[0]
        ratios = np.ones(int(groups.max(initial=0)) + 1)
        found: dict[int, list[float]] = {}
        for row, evaluated in self._fitting.items():
            found.setdefault(int(groups[row]), []).append(evaluated.prediction.time.step_s / float(estimate[row]))
        for group, values in found.items():
            ratios[group] = min(values)
        corrected: FloatColumn = estimate * ratios[groups]
        return corrected

    def walk(self, order: IntColumn, *, max_fitting: int, max_per_family: int) -> None:
        """Predict rows in ``order`` until ``max_fitting`` more of them fit, few of each set of degrees.

        Rows whose memory band reaches beyond the device are counted apart, and so are ways to offload: they may be the
        fastest of their degrees, and must not keep those that are safe or simpler from being seen.
        """
        shares: dict[Key, int] = {}
        num_fitting = num_predicted = 0
        for number in order:
            row = int(number)
            if num_fitting >= max_fitting or num_predicted >= max_fitting * MEMORY_PREDICTIONS_PER_FULL:
                return
            family = (*self._family(row), int(self._rows.offload[row]), int(self._rows.activation_offload[row]))
            if shares.get((*family, SAFE), 0) >= max_per_family:
                continue
            if row in self._fitting:
                is_borderline: bool | None = self._fitting[row].prediction.memory.is_borderline
            elif self._alive[row]:
                num_predicted += 1
                is_borderline = self._take(row, shares.get((*family, BORDERLINE), 0) < max_per_family)
                num_fitting += is_borderline is not None
            else:
                continue
            if is_borderline is not None:
                share = (*family, BORDERLINE if is_borderline else SAFE)
                shares[share] = shares.get(share, 0) + 1

    def find_safe(self, order: IntColumn) -> None:
        """Predict the first row in ``order`` whose memory band lies within the device; nothing when it was already."""
        for row in order.tolist():
            if row in self._fitting and not self._fitting[row].prediction.memory.is_borderline:
                return
            if row not in self._fitting and self._alive[row] and self._take(row, takes_borderline=False) is False:
                return

    def spread_unevenly(self, *, most: int) -> None:
        """Predict pipelines again with fewer blocks on the stage of the head; keep what is faster.

        Args:
            most: of those that were not tried, the ones that may be fastest.
        """
        pipelines = {row: found for row, found in self._fitting.items() if found.plan.layout.pp > 1}
        hoped_s = {row: _spread_s(found) for row, found in pipelines.items() if row not in self._spread}
        chosen = sorted(hoped_s, key=lambda row: hoped_s[row])[:most]
        self._spread.update(chosen)
        fastest = [pipelines[row] for row in chosen]
        tried = [
            replace(even, plan=replace(even.plan, layout=replace(even.plan.layout, stage_layers=layers)))
            for even in fastest
            for layers in islice(uneven_stages(even.plan), SPREADS)
        ]
        self._uneven += filter(None, map(_spread, tried))

    def recompute_safely(self, *, space: Space, most: int) -> None:
        """Predict plans at the edge of the device again with so many more blocks or modules recomputed as fit safely.

        They are rows of the space, but only the fewest blocks that fit at all are looked for there: those that are
        faster than everything safe, and those that would be recommended if they were safe.
        """
        known, safe = self._in_order(), self.safe
        edge: dict[Key, Evaluated] = {}
        for found in known:
            if found.prediction.memory.is_borderline and _may_be_preferred(found, safe):
                edge.setdefault((*found.family, host_moves(found.plan)), found)
        fastest = list(edge.values())
        cheapest = sorted(fastest, key=lambda found: found.priced_s)
        chosen = list({id(found): found for found in (*fastest[:most], *cheapest[:most])}.values())
        plans = [(found.plan.layout, found.plan.recipe) for found in known]
        made = (found for edge in chosen for found in made_safe(edge, space))
        self._made_safe += [found for found in made if (found.plan.layout, found.plan.recipe) not in plans]

    @property
    def safe(self) -> list[Evaluated]:
        """The rows predicted so far whose memory band stays inside the device, the fastest first."""
        return [found for found in self._in_order() if not found.prediction.memory.is_borderline]

    @property
    def fastest_s(self) -> float:
        """Seconds of the fastest step predicted so far, uneven stages included."""
        every = (*self._fitting.values(), *self._uneven)
        return min((found.prediction.time.step_s for found in every), default=float("inf"))

    @property
    def is_open(self) -> Mask:
        """Rows that were not taken and are not known to be too big."""
        is_open = self._alive.copy()
        is_open[list(self._fitting)] = False
        return is_open

    def _in_order(self) -> list[Evaluated]:
        """The rows predicted so far, the fastest first."""
        return sorted(
            self._fitting.values(),
            key=lambda found: (found.prediction.time.step_s, found.prediction.memory.is_borderline),
        )

    @property
    def num_fitting(self) -> int:
        """Rows predicted to fit so far."""
        return len(self._fitting)

    @property
    def num_families(self) -> int:
        """Sets of degrees with a row predicted to fit so far."""
        return len({taken.family for taken in self._fitting.values()})

    def result(self) -> Evaluation:
        """Everything found so far."""
        return Evaluation(
            fitting=(*self._fitting.values(), *self._uneven, *self._made_safe),
            num_uneven=len(self._uneven),
            num_too_big=int(np.count_nonzero(~self._alive)),
            nearest=None if self._fitting else self._nearest,
        )

    def _family(self, row: int) -> Key:
        return tuple(int(self._rows.column(name)[row]) for name in FAMILY)

    def _memory(self, row: int) -> MemoryPrediction | None:
        """The memory of a row; ``None`` when it breaks a rule."""
        plan = self._rows.plan(row, question=self._question)
        return None if find_errors(plan) else predict_fullest_memory(plan)

    def _take(self, row: int, takes_borderline: bool) -> bool | None:
        """Take a row that fits, and say whether it is borderline; drop all that needs as much as one that does not."""
        memory = self._memories.pop(row) if row in self._memories else self._memory(row)
        if memory is None:
            self._alive[row] = False
            return None
        plan = self._rows.plan(row, question=self._question)
        if not (memory.fits_device and memory.fits_host):
            self._alive &= ~_at_least_as_big(self._rows, row)
            if self._nearest is None or memory.needed_bytes < self._nearest[1].needed_bytes:
                self._nearest = (plan, memory)
            return None
        if memory.is_borderline and not takes_borderline:
            self._memories[row] = memory
            return None
        prediction = predict(plan, memory=memory)
        self._fitting[row] = Evaluated(family=self._family(row), plan=plan, prediction=prediction)
        return memory.is_borderline


def _spread(uneven: Evaluated) -> Evaluated | None:
    """A pipeline, predicted with even stages so far, with the prediction of its own; ``None`` where its own stages are
    not allowed, fit less safely or are hardly faster."""
    plan, even = uneven.plan, uneven.prediction
    if find_errors(plan):
        return None
    memory = predict_fullest_memory(plan)
    is_as_safe = even.memory.is_borderline or not memory.is_borderline
    if not (memory.fits_device and memory.fits_host and is_as_safe):
        return None
    prediction = predict(plan, memory=memory)
    is_faster = prediction.time.step_s < (1 - LEAST_GAIN_FRACTION) * even.time.step_s
    return replace(uneven, prediction=prediction) if is_faster else None


def _spread_s(even: Evaluated) -> float:
    """Seconds that the best uneven spread of a pipeline may take."""
    return spread_ratio(even.plan) * even.prediction.time.step_s


def _may_be_preferred(edge: Evaluated, safe: Sequence[Evaluated]) -> bool:
    """Whether a plan at the edge of the device would be recommended if it were safe."""
    is_faster = all(edge.prediction.time.step_s < found.prediction.time.step_s for found in safe)
    return is_faster or all(edge.priced_s < found.priced_s for found in safe)


def made_safe(edge: Evaluated, space: Space) -> Iterator[Evaluated]:
    """A plan at the edge of the device with more blocks or modules recomputed, in each way that makes it fit safely."""
    modes = [RECOMPUTES[mode] for mode in space.counted_modes]
    sets = [modules_of(bits) for bits in space.module_sets]
    for plan, memory in safely_recomputed(edge.plan, edge.prediction.memory, modes=modes, module_sets=sets):
        yield replace(edge, plan=plan, prediction=predict(plan, memory=memory))


def safely_fitting(fitting: Sequence[Evaluated], space: Space) -> tuple[Evaluated, ...]:
    """The plans that fit safely, then safe versions of the others, with more blocks or modules recomputed."""
    found = [one for one in fitting if not one.prediction.memory.is_borderline]
    for edge in fitting:
        if edge.prediction.memory.is_borderline:
            found += made_safe(edge, space)
    return tuple(found)


def _at_least_as_big(rows: Candidates, row: int) -> Mask:
    """Rows that differ from one only in ways that cannot need less memory, the row itself included."""
    same: Mask = np.ones(len(rows), dtype=np.bool_)
    layout = ("vpp", "schedule", "sequence_parallel", "zero_stage", "reshard_after_forward")
    for name in (*FAMILY, *layout, "offload", "activation_offload", "recompute_layers", "recompute_modules"):
        same &= rows.column(name) == rows.column(name)[row]
    depth = RECOMPUTE_DEPTH[rows.recompute]
    same &= rows.micro_batch_size >= rows.micro_batch_size[row]
    same &= depth <= depth[row]
    return same


def best_first(
    estimate: FloatColumn,
    rows: Candidates,
    *,
    resolution: float = 0.0,
    default_zero_stage: int = 3,
    gpus_per_node: int = 1,
) -> IntColumn:
    """Rows from the lowest estimate up; equal ones by simplicity, so that the order never depends on chance.

    Args:
        estimate: what to order by.
        rows: the candidates.
        resolution: estimates that differ by less than this share count as equal.
        default_zero_stage: what the engine is normally run with, first among equals.
        gpus_per_node: shard groups that fill nodes evenly come first among equals.
    """
    coarse = np.round(np.log(estimate) / resolution) if resolution else estimate
    group = rows.tp * rows.state_shard_size
    straddles = (rows.zero_stage > 0) & (group % gpus_per_node > 0) & (gpus_per_node % group > 0)
    keys = (
        rows.micro_batch_size,
        rows.recompute,
        1 - rows.reshard_after_forward,
        np.abs(rows.zero_stage - default_zero_stage),
        rows.schedule,
        rows.vpp,
        rows.cp,
        rows.pp,
        rows.tp,
        straddles,
        coarse,
    )
    order: IntColumn = np.lexsort(keys)
    return order
