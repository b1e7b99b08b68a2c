"""The calibration that follows from runs: factors drawn towards 1 while runs are few, bounded, and blind to outliers.

Times: the logarithm of measured over predicted step is laid to compute, host and communication by how much each of them
moves that step, by least squares whose weights fall for runs that fit badly (Huber) and with a pull towards no change.
What hides beside other work moves a step only once it no longer hides, so the shares are taken again at the factors
found (Gauss and Newton).
Memory: the median of the runs, pulled likewise. A run whose prediction the new factors make worse is named.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.calibration import Calibration, Residual, ResidualName
from shardwise.reconcile.records import (
    MEMORY_FACTORS,
    TIME_FACTORS,
    RunRecord,
    RunTotals,
    predicted_again,
    predicted_by,
    totals_of,
    with_factors,
)

PULL = 0.01
"""Penalty on changes in the least squares. One run whose step is all compute passes 99 % of its error on; one whose
step is a tenth communication passes on half of what would explain its error."""
OUTLIER_LOG_RATIO = 0.05
"""Residuals beyond this weigh less, in proportion (Huber 1964); about what two steps of one run differ by."""
ROUNDS = 20
TURNS = 3
"""How often the factors are fitted, each time with shares that follow from the factors before."""
MOST_TIME_RATIO, MOST_MEMORY_RATIO = 2.0, 1.3
"""The largest factors; where runs ask for more, something else was run, and the factor stops here."""
MEMORY_PULL_RUNS = 0.5
"""Runs that a memory factor of 1 counts for beside those that were seen."""
WORSE_FRACTION = 0.005
"""A prediction that loses less than this is not called worse."""
Quantity = Literal["step time", "peak allocated", "peak reserved", "device used"]
Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorChange:
    """One quantity of one run: predicted over measured minus one, before and after."""

    run: str
    quantity: Quantity
    before_fraction: float
    after_fraction: float

    @property
    def is_worse(self) -> bool:
        """Whether the new factors move this prediction away from what was measured."""
        return abs(self.after_fraction) > abs(self.before_fraction) + WORSE_FRACTION


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedCalibration:
    """A calibration with factors from runs, and what it makes of each run's prediction."""

    calibration: Calibration
    learned: tuple[Residual, ...]
    """The factors that these runs changed."""
    changes: tuple[ErrorChange, ...]

    @property
    def worse(self) -> tuple[ErrorChange, ...]:
        """Changes of predictions that were closer to the measurement before."""
        return tuple(change for change in self.changes if change.is_worse)


def learn(calibration: Calibration, runs: Sequence[RunRecord]) -> LearnedCalibration:
    """The calibration that follows from runs of one machine, whose records it predicted."""
    learned = {residual.name: residual for residual in (*_times(calibration, runs), *_memory(calibration, runs))}
    following = with_factors(calibration, learned)
    changes = [change for run in runs for change in _changes(run, totals_of(predicted_by(run.plan, following)))]
    return LearnedCalibration(calibration=following, learned=tuple(learned.values()), changes=tuple(changes))


def _times(calibration: Calibration, runs: Sequence[RunRecord]) -> Iterator[Residual]:
    timed = [run for run in runs if run.measured.step_s and run.predicted.step_s]
    if not timed:
        return
    found: tuple[Residual, ...] = ()
    for turn in range(TURNS):
        here = with_factors(calibration, {residual.name: residual for residual in found})
        seen = [predicted_again(run, here) for run in timed] if turn else timed
        found = tuple(_turned(calibration, here, seen))
    yield from found


def _turned(base: Calibration, here: Calibration, runs: Sequence[RunRecord]) -> Iterator[Residual]:
    """The factors that follow from predictions made with those of ``here``; the pull is towards those of ``base``."""
    errors = np.array([log((run.measured.step_s or 1.0) / (run.predicted.step_s or 1.0)) for run in runs])
    shares = np.array([[dict(run.shares).get(name, 0.0) for name in TIME_FACTORS] for run in runs])
    changed = np.array([log(here.ratio_of(name) / base.ratio_of(name)) for name in TIME_FACTORS])
    fit = _robust_fit(shares, errors + shares @ changed)
    for name, change, column in zip(TIME_FACTORS, fit, shares.T, strict=True):
        num_runs = int(np.count_nonzero(column))
        if num_runs:
            yield _residual(base, name, exp(float(change)), num_runs=num_runs, most_ratio=MOST_TIME_RATIO)


def _robust_fit(shares: Column, errors: Column) -> Column:
    """Changes of the factors' logarithms, by least squares that outliers do not decide."""
    weights = np.ones(len(errors))
    found: Column = np.zeros(shares.shape[1])
    for _ in range(ROUNDS):
        weighted = shares * weights[:, None]
        found[:] = np.linalg.solve(shares.T @ weighted + PULL * np.eye(shares.shape[1]), weighted.T @ errors)
        left = np.abs(errors - shares @ found)
        weights = np.minimum(1.0, OUTLIER_LOG_RATIO / np.maximum(left, 1e-12))
    return found


def _memory(calibration: Calibration, runs: Sequence[RunRecord]) -> Iterator[Residual]:
    for name in MEMORY_FACTORS:
        ratios = [ratio for run in runs if (ratio := _memory_ratio(name, run.measured, run.predicted)) is not None]
        if ratios:
            pulled = median(log(ratio) for ratio in ratios) * len(ratios) / (len(ratios) + MEMORY_PULL_RUNS)
            yield _residual(calibration, name, exp(pulled), num_runs=len(ratios), most_ratio=MOST_MEMORY_RATIO)


def _memory_ratio(name: ResidualName, measured: RunTotals, predicted: RunTotals) -> float | None:
    """Measured over predicted: of what is allocated, of what is held per byte allocated, of what lies outside."""
    if not (measured.allocated_bytes and predicted.allocated_bytes):
        return None
    allocated = measured.allocated_bytes / predicted.allocated_bytes
    if name == "memory allocated":
        return allocated
    if not (measured.reserved_bytes and predicted.reserved_bytes):
        return None
    if name == "memory reserved":
        return measured.reserved_bytes / predicted.reserved_bytes / allocated
    if not (measured.used_bytes and predicted.used_bytes):
        return None
    outside = measured.used_bytes - measured.reserved_bytes, predicted.used_bytes - predicted.reserved_bytes
    return outside[0] / outside[1] if min(outside) > 0 else None


def _residual(
    calibration: Calibration, name: ResidualName, change_ratio: float, *, num_runs: int, most_ratio: float
) -> Residual:
    """A factor turned further, within its bounds; runs that taught it before still count."""
    before = next((residual.num_runs for residual in calibration.residuals if residual.name == name), 0)
    ratio = max(1 / most_ratio, min(most_ratio, calibration.ratio_of(name) * change_ratio))
    return Residual(name=name, ratio=ratio, num_runs=before + num_runs)


def _changes(run: RunRecord, after: RunTotals) -> Iterator[ErrorChange]:
    quantities: tuple[tuple[Quantity, float | None, float | None, float | None], ...] = (
        ("step time", run.measured.step_s, run.predicted.step_s, after.step_s),
        ("peak allocated", run.measured.allocated_bytes, run.predicted.allocated_bytes, after.allocated_bytes),
        ("peak reserved", run.measured.reserved_bytes, run.predicted.reserved_bytes, after.reserved_bytes),
        ("device used", run.measured.used_bytes, run.predicted.used_bytes, after.used_bytes),
    )
    for quantity, measured, before, now in quantities:
        if measured and before and now:
            yield ErrorChange(
                run=run.name,
                quantity=quantity,
                before_fraction=before / measured - 1,
                after_fraction=now / measured - 1,
            )
