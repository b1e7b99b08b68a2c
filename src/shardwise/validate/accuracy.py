"""How far predictions are from measurements: per row, per family, and as an answer to "does it fit?"."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from shardwise.errors import ShardwiseError
from shardwise.plan import Plan
from shardwise.predict.memory_band import reading_band
from shardwise.prediction import MemoryPrediction
from shardwise.units import Bytes
from shardwise.validate.records import MeasuredRun, Outcome, Scope, UnusedRow
from shardwise.validate.shipped_runs import measured_runs

Predictor = Callable[[Plan], MemoryPrediction]

FITTED_FAMILIES: tuple[str, ...] = ("SIMUB200", "RUNSIMU", "RUNFMS", "RUNLITGPT")
"""Families whose readings were used to choose a constant of the memory model or its bands; not counted as independent
evidence.

SIMUB200 and RUNSIMU: bytes per logit of Transformer Engine's fused loss. RUNFMS: bytes per logit of a fused loss behind
an fp32 cast, and the widening of a recomputed block by fp32 adapters under FSDP1. RUNLITGPT: the band of quantised
weights alone, which all four decide (``predict/memory_band.py``). Everything else in the model follows from sources or
from our own H100 runs (``benchmarks/results``), which are no part of this table."""

MIN_ENGINE_READINGS = 10
"""Fewer readings of an engine say little about how often its band holds."""

SCOPES: tuple[Scope, ...] = ("allocated", "reserved", "device", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAccuracy:
    """One measured run beside its prediction."""

    run: MeasuredRun
    predicted_bytes: Bytes | None
    """The predicted figure of the run's own scope; ``None`` when the run published no figure."""
    predicted_fits: bool | None
    """Whether the prediction says it fits; ``None`` when this reading does not decide the outcome."""
    signed_error_fraction: float | None
    """Predicted over measured minus one; zero inside the measured interval."""
    is_in_band: bool = False
    """Whether the measured figure can lie inside the predicted band."""
    refusal: str = ""
    """Why the plan could not be predicted; empty when it could."""

    @property
    def is_fitted(self) -> bool:
        """Whether the run's family was used to choose a constant."""
        return self.run.family in FITTED_FAMILIES


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Signed and absolute errors over one group of readings."""

    name: str
    scope: Scope | Literal["all"]
    num_readings: int
    median_signed_fraction: float
    median_absolute_fraction: float
    p90_absolute_fraction: float
    max_absolute_fraction: float
    in_band_fraction: float
    """Share of readings inside the predicted band."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSummary:
    """Right and wrong answers to "does it fit?"."""

    name: str
    num_fits_right: int
    """Runs that fitted and were predicted to fit."""
    num_fits_wrong: int
    """Runs that fitted and were predicted to run out of memory."""
    num_oom_wrong: int
    """Runs that ran out of memory and were predicted to fit."""
    num_oom_right: int
    """Runs that ran out of memory and were predicted to."""

    @property
    def num_rows(self) -> int:
        """Rows whose outcome is known."""
        return self.num_fits_right + self.num_fits_wrong + self.num_oom_wrong + self.num_oom_right

    @property
    def correct_fraction(self) -> float:
        """Share of rows answered right; 1 for no rows."""
        right = self.num_fits_right + self.num_oom_right
        return right / self.num_rows if self.num_rows else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyReport:
    """Everything ``shardwise validate`` prints about memory."""

    rows: tuple[RowAccuracy, ...]
    families: tuple[ErrorSummary, ...]
    """Errors per family and scope."""
    overall: tuple[ErrorSummary, ...]
    """Errors per scope over all families."""
    reported: tuple[ErrorSummary, ...]
    """Errors per scope over the families no constant was fitted on."""
    reported_engines: tuple[ErrorSummary, ...]
    """Errors of reported families by engine, where an engine has ``MIN_ENGINE_READINGS`` readings or more."""
    fitted: tuple[ErrorSummary, ...]
    """Errors per scope over the families a constant was fitted on."""
    fits: FitSummary
    fits_by_family: tuple[FitSummary, ...]
    unused: tuple[UnusedRow, ...]


def memory_accuracy(predictor: Predictor | None = None, runs: Sequence[MeasuredRun] | None = None) -> AccuracyReport:
    """Predict every measured run and compare.

    Args:
        predictor: what predicts a plan's memory; the package's own by default.
        runs: the runs to predict; all shipped ones by default.
    """
    shipped = measured_runs()
    chosen = shipped.runs if runs is None else tuple(runs)
    predict = predictor if predictor is not None else _own_predictor()
    rows = tuple(compare(run, predict) for run in chosen)
    return AccuracyReport(
        rows=rows,
        families=summarise_by_family(rows),
        overall=summarise_by_scope("all families", rows),
        reported=summarise_by_scope("reported families", (row for row in rows if not row.is_fitted)),
        reported_engines=tuple(_by_engine([row for row in rows if not row.is_fitted])),
        fitted=summarise_by_scope("fitted families", (row for row in rows if row.is_fitted)),
        fits=fit_summary("all families", rows),
        fits_by_family=tuple(
            fit_summary(family, [row for row in rows if row.run.family == family]) for family in _families(rows)
        ),
        unused=shipped.unused,
    )


def _own_predictor() -> Predictor:
    from shardwise.predict.memory import predict_memory  # noqa: PLC0415  the model is heavy and tests pass their own

    return predict_memory


def compare(run: MeasuredRun, predict: Predictor) -> RowAccuracy:
    """One run beside its prediction; a plan that the rules refuse is kept with the refusal."""
    try:
        prediction = predict(run.plan)
    except ShardwiseError as refusal:
        return RowAccuracy(
            run=run,
            predicted_bytes=None,
            predicted_fits=None,
            signed_error_fraction=None,
            refusal=f"{refusal.code}: {refusal.message}",
        )
    predicted_bytes = _predicted_figure(run, prediction)
    return RowAccuracy(
        run=run,
        predicted_bytes=predicted_bytes,
        predicted_fits=prediction.fits_device if run.decides_outcome else None,
        signed_error_fraction=_signed_error(run, predicted_bytes),
        is_in_band=_is_in_band(run, predicted_bytes, prediction),
    )


def _is_in_band(run: MeasuredRun, predicted_bytes: Bytes | None, prediction: MemoryPrediction) -> bool:
    if predicted_bytes is None or run.measured_low_bytes is None or run.measured_high_bytes is None:
        return False
    is_whole_device = run.scope not in ("allocated", "reserved")
    low_fraction, high_fraction = reading_band(prediction, is_whole_device=is_whole_device)
    low, high = predicted_bytes * low_fraction, predicted_bytes * high_fraction
    return run.measured_high_bytes >= low and run.measured_low_bytes <= high


def _predicted_figure(run: MeasuredRun, prediction: MemoryPrediction) -> Bytes | None:
    if run.measured_low_bytes is None:
        return None
    stages = prediction.stages if run.stage is None else (prediction.stages[run.stage],)
    if run.scope == "device":
        return max(stage.device_used_bytes for stage in stages)
    if run.scope == "reserved":
        return max(stage.peak_reserved_bytes for stage in stages)
    return max(stage.peak_allocated_bytes for stage in stages)


def _signed_error(run: MeasuredRun, predicted_bytes: Bytes | None) -> float | None:
    if predicted_bytes is None or run.measured_low_bytes is None or run.measured_high_bytes is None:
        return None
    return interval_error_fraction(predicted=predicted_bytes, low=run.measured_low_bytes, high=run.measured_high_bytes)


def interval_error_fraction(*, predicted: float, low: float, high: float) -> float:
    """Signed distance from a measured interval to the prediction, as a fraction of the nearest edge.

    >>> interval_error_fraction(predicted=31, low=30, high=32)
    0.0
    >>> interval_error_fraction(predicted=15, low=30, high=32)
    -0.5
    """
    if predicted < low:
        return predicted / low - 1
    if predicted > high:
        return predicted / high - 1
    return 0.0


def percentile(values: Sequence[float], fraction: float) -> float:
    """Linear interpolation between order statistics, as numpy's default does.

    >>> percentile([1.0, 2.0, 3.0, 4.0, 5.0], 0.9)
    4.6
    """
    ordered = sorted(values)
    position = fraction * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def summarise(name: str, scope: Scope | Literal["all"], rows: Sequence[RowAccuracy]) -> ErrorSummary:
    """Medians and the 90th percentile of signed errors, and how often the band holds."""
    errors = [_error(row) for row in rows]
    absolute = [abs(error) for error in errors]
    return ErrorSummary(
        name=name,
        scope=scope,
        num_readings=len(errors),
        median_signed_fraction=median(errors),
        median_absolute_fraction=median(absolute),
        p90_absolute_fraction=percentile(absolute, 0.9),
        max_absolute_fraction=max(absolute),
        in_band_fraction=sum(row.is_in_band for row in rows) / len(rows),
    )


def summarise_by_scope(name: str, rows: Iterable[RowAccuracy]) -> tuple[ErrorSummary, ...]:
    """One summary per scope that has readings, and one over all of them."""
    kept = [row for row in rows if row.signed_error_fraction is not None]
    summaries = [
        summarise(name, scope, own) for scope in SCOPES if (own := [row for row in kept if row.run.scope == scope])
    ]
    if kept:
        summaries.append(summarise(name, "all", kept))
    return tuple(summaries)


def _by_engine(rows: Sequence[RowAccuracy]) -> Iterator[ErrorSummary]:
    for engine in sorted({row.run.plan.engine for row in rows}):
        own = [row for row in rows if row.run.plan.engine == engine and row.signed_error_fraction is not None]
        if len(own) >= MIN_ENGINE_READINGS:
            yield summarise(engine, "all", own)


def summarise_by_family(rows: Sequence[RowAccuracy]) -> tuple[ErrorSummary, ...]:
    """One summary per family and scope, in the order of the tables."""
    summaries: list[ErrorSummary] = []
    for family in _families(rows):
        for scope in SCOPES:
            own = [
                row
                for row in rows
                if row.run.family == family and row.run.scope == scope and row.signed_error_fraction is not None
            ]
            if own:
                summaries.append(summarise(family, scope, own))
    return tuple(summaries)


def fit_summary(name: str, rows: Iterable[RowAccuracy]) -> FitSummary:
    """The confusion table of predicted against real outcomes."""
    counts: dict[tuple[Outcome, bool], int] = {}
    for row in rows:
        if row.predicted_fits is not None:
            key = (row.run.outcome, row.predicted_fits)
            counts[key] = counts.get(key, 0) + 1
    return FitSummary(
        name=name,
        num_fits_right=counts.get(("fits", True), 0),
        num_fits_wrong=counts.get(("fits", False), 0),
        num_oom_wrong=counts.get(("oom", True), 0),
        num_oom_right=counts.get(("oom", False), 0),
    )


def _families(rows: Iterable[RowAccuracy]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row.run.family for row in rows))


def _error(row: RowAccuracy) -> float:
    return row.signed_error_fraction if row.signed_error_fraction is not None else 0.0
