"""How far predicted step times are from measured ones: per row, per family, within sweeps, and inside the band."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from shardwise.errors import ShardwiseError
from shardwise.plan import Plan
from shardwise.predict.one_reading import carried_ratio, plan_sizes
from shardwise.predict.time_band import BandReason, band_reasons
from shardwise.prediction import TimeEntry, TimePrediction
from shardwise.units import Seconds
from shardwise.validate.accuracy import percentile
from shardwise.validate.rank_correlation import concordance
from shardwise.validate.records import TimedRun, UnusedRow
from shardwise.validate.shipped_runs import timed_runs

TimePredictor = Callable[[Plan], TimePrediction]

FITTED_TIME_FAMILIES: tuple[str, ...] = ("VTRAINM", "VTRAINS2048", "LLMF", "AUTOMODEL", "MBRIDGE", "TR8")
"""Families whose rates were used to choose a constant; never counted as evidence. They decide how wide bands are
(``predict/time_band.py``): GPTs on A100, small ones among them; FSDP on H100; experts and 8 bits; and V100, of which
only the peak is known. No constant of the step time itself is fitted on any of these runs. Kernels' constants come from
measurements of kernels, two of them (``TILE_SCALED_RATIOS``) from a trace of DeepSeek-V3's training, whose bill is
therefore no evidence either (``fitted`` in ``cost_facts.csv``)."""

MIN_ENGINE_ROWS = 10
"""Fewer runs of an engine say little about how often its band holds."""

MIN_SWEEP_ROWS = 3
"""A sweep of two rows is one comparison, not a ranking."""

MIN_SWEEP_SPREAD = 0.02
"""Sweeps whose rates differ by less rank noise: repeated readings of one run differ by as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRowAccuracy:
    """One measured run beside its prediction."""

    run: TimedRun
    predicted_s: Seconds | None
    """``None`` when the plan could not be predicted."""
    low_s: Seconds | None
    high_s: Seconds | None
    signed_error_fraction: float | None
    """Predicted over measured step time minus one: negative is optimistic."""
    components: tuple[TimeEntry, ...] = ()
    refusal: str = ""
    """Why the plan could not be predicted; empty when it could."""

    @property
    def is_in_band(self) -> bool:
        """Whether the measured time lies inside the predicted band."""
        if self.low_s is None or self.high_s is None:
            return False
        return self.low_s <= self.run.measured_s <= self.high_s

    @property
    def is_fitted(self) -> bool:
        """Whether the run's family was used to choose a constant."""
        return self.run.family in FITTED_TIME_FAMILIES

    @property
    def fitted_reason(self) -> BandReason | None:
        """The reason whose band the run was used for; ``None`` for a run that fitted nothing."""
        if not self.is_fitted or not self.run.is_faithful:
            return None
        (*_, last) = band_reasons(self.run.plan)
        return last

    @property
    def measured_s_per_token(self) -> Seconds:
        """Measured step time over the tokens of the step, by which sweeps are ranked."""
        return self.run.measured_s / self.run.plan.tokens_per_step

    @property
    def predicted_s_per_token(self) -> Seconds:
        """Predicted step time over the tokens of the step; 0 without a prediction."""
        return (self.predicted_s or 0.0) / self.run.plan.tokens_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSummary:
    """Errors of step time over one group of runs."""

    name: str
    has_gaps: bool
    """Whether the runs did something a plan cannot say."""
    num_rows: int
    median_signed_fraction: float
    """The bias: negative is optimistic."""
    median_absolute_fraction: float
    p90_absolute_fraction: float
    max_absolute_fraction: float
    in_band_fraction: float
    """Share of runs whose measured time lies inside the predicted band."""
    calibrated_median_fraction: float | None
    """Median absolute error after one other row of the same family was measured, for the typical choice of it; ``None``
    for one row."""
    kendall_tau_ratio: float | None
    """Rank correlation of time per token within sweeps, over all their pairs; ``None`` without a sweep."""
    num_sweeps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeAccuracyReport:
    """Everything ``shardwise validate --quantity time`` prints."""

    rows: tuple[TimedRowAccuracy, ...]
    families: tuple[TimeSummary, ...]
    """Errors per family; runs with gaps have summaries of their own."""
    reported: TimeSummary | None
    """Errors over the families no constant was fitted on, without runs that have gaps."""
    fitted: TimeSummary | None
    """Errors over the families a constant was fitted on, without runs that have gaps."""
    with_gaps: TimeSummary | None
    """Errors over the runs that did something a plan cannot say."""
    blind: TimeSummary | None
    """Errors over ``blind_families``, without runs that have gaps."""
    blind_engines: tuple[TimeSummary, ...]
    """Errors of blind families by engine, where an engine has ``MIN_ENGINE_ROWS`` rows or more."""
    family_median_fraction: float
    """Median over families of their median absolute error, so that a family of a thousand rows counts once."""
    family_calibrated_fraction: float
    """``family_median_fraction`` after one row of each family was measured."""
    blind_families: tuple[str, ...]
    """Families of which no run fitted anything, bands included."""
    fitted_families: tuple[str, ...]
    reported_families: tuple[str, ...]
    unused: tuple[UnusedRow, ...]


def time_accuracy(predictor: TimePredictor | None = None, runs: Sequence[TimedRun] | None = None) -> TimeAccuracyReport:
    """Predict every measured rate and compare.

    Args:
        predictor: what predicts a plan's step time; the package's own by default.
        runs: the runs to predict; all shipped ones by default.
    """
    shipped = timed_runs()
    chosen = shipped.runs if runs is None else tuple(runs)
    predict = predictor if predictor is not None else _own_predictor()
    rows = tuple(compare_time(run, predict) for run in chosen)
    faithful = [row for row in rows if row.run.is_faithful and row.signed_error_fraction is not None]
    families = tuple(summarise_time_families(rows))
    unfitted = _blind_families(rows)
    blind = [row for row in faithful if row.run.family in unfitted]
    evidence = [summary for summary in families if not summary.has_gaps and summary.name not in FITTED_TIME_FAMILIES]
    return TimeAccuracyReport(
        rows=rows,
        families=families,
        reported=_summary_of("reported families", [row for row in faithful if not row.is_fitted]),
        fitted=_summary_of("fitted families", [row for row in faithful if row.is_fitted]),
        with_gaps=_summary_of("runs with a gap", [row for row in rows if not row.run.is_faithful], has_gaps=True),
        blind=_summary_of("fitted nothing", blind),
        blind_engines=tuple(_by_engine(blind)),
        blind_families=unfitted,
        family_median_fraction=median([summary.median_absolute_fraction for summary in evidence] or [0.0]),
        family_calibrated_fraction=median(
            [
                summary.calibrated_median_fraction
                for summary in evidence
                if summary.calibrated_median_fraction is not None
            ]
            or [0.0]
        ),
        fitted_families=FITTED_TIME_FAMILIES,
        reported_families=tuple(dict.fromkeys(row.run.family for row in faithful if not row.is_fitted)),
        unused=shipped.unused,
    )


def _blind_families(rows: Sequence[TimedRowAccuracy]) -> tuple[str, ...]:
    """Families of which no run fitted anything, in the order of the rows."""
    fitting = {row.run.family for row in rows if row.fitted_reason is not None}
    return tuple(dict.fromkeys(row.run.family for row in rows if row.run.family not in fitting))


def _by_engine(rows: Sequence[TimedRowAccuracy]) -> Iterator[TimeSummary]:
    for engine in sorted({row.run.plan.engine for row in rows}):
        own = [row for row in rows if row.run.plan.engine == engine]
        if len(own) >= MIN_ENGINE_ROWS:
            yield summarise_time(engine, own)


def _own_predictor() -> TimePredictor:
    from shardwise.predict.time import predict_time  # noqa: PLC0415  the model is heavy and tests pass their own

    return lambda plan: predict_time(plan)[0]


def compare_time(run: TimedRun, predict: TimePredictor) -> TimedRowAccuracy:
    """One run beside its prediction; a plan that is refused is kept with the refusal."""
    try:
        prediction = predict(run.plan)
    except ShardwiseError as refusal:
        return TimedRowAccuracy(
            run=run,
            predicted_s=None,
            low_s=None,
            high_s=None,
            signed_error_fraction=None,
            refusal=f"{refusal.code}: {refusal.message}",
        )
    return TimedRowAccuracy(
        run=run,
        predicted_s=prediction.step_s,
        low_s=prediction.step_low_s,
        high_s=prediction.step_high_s,
        signed_error_fraction=prediction.step_s / run.measured_s - 1,
        components=prediction.components,
    )


def summarise_time_families(rows: Sequence[TimedRowAccuracy]) -> Iterator[TimeSummary]:
    """One summary per family, and one more for its runs with gaps."""
    for family in dict.fromkeys(row.run.family for row in rows):
        own = [row for row in rows if row.run.family == family]
        for has_gaps in (False, True):
            found = _summary_of(family, [row for row in own if row.run.is_faithful is not has_gaps], has_gaps=has_gaps)
            if found is not None:
                yield found


def _summary_of(name: str, rows: Sequence[TimedRowAccuracy], *, has_gaps: bool = False) -> TimeSummary | None:
    predicted = [row for row in rows if row.signed_error_fraction is not None]
    return summarise_time(name, predicted, has_gaps=has_gaps) if predicted else None


def summarise_time(name: str, rows: Sequence[TimedRowAccuracy], *, has_gaps: bool = False) -> TimeSummary:
    """Errors, band coverage and rank correlation of predicted rows."""
    errors = [row.signed_error_fraction or 0.0 for row in rows]
    absolute = [abs(error) for error in errors]
    tau, num_sweeps = _tau_within_sweeps(rows)
    return TimeSummary(
        name=name,
        has_gaps=has_gaps,
        num_rows=len(rows),
        median_signed_fraction=median(errors),
        median_absolute_fraction=median(absolute),
        p90_absolute_fraction=percentile(absolute, 0.9),
        max_absolute_fraction=max(absolute),
        in_band_fraction=sum(row.is_in_band for row in rows) / len(rows),
        calibrated_median_fraction=_calibrated_median(rows),
        kendall_tau_ratio=tau,
        num_sweeps=num_sweeps,
    )


MAX_CALIBRATING_ROWS = 100
"""Rows tried as the measured one: in large families an even sample of them."""


def calibrated_errors(rows: Sequence[TimedRowAccuracy]) -> list[float]:
    """Absolute error of every row of a family once one other row was measured, for the typical choice of that row.

    The measured row's ratio is carried over as far as the plans are alike (``predict/one_reading.py``). Every other row
    is tried as the measured one; the median over these choices is what a user may expect.
    """
    if len(rows) < 2:
        return []
    sizes = [plan_sizes(row.run.plan) for row in rows]
    ratios = [1 / (1 + (row.signed_error_fraction or 0.0)) for row in rows]
    chosen = range(0, len(rows), max(1, len(rows) // MAX_CALIBRATING_ROWS))
    return [
        median(
            abs(carried_ratio(ratios[number], sizes[number], sizes[other]) / ratios[other] - 1)
            for number in chosen
            if number != other
        )
        for other in range(len(rows))
    ]


def _calibrated_median(rows: Sequence[TimedRowAccuracy]) -> float | None:
    """Median over rows, each calibrated by one of its own family."""
    families: dict[str, list[TimedRowAccuracy]] = {}
    for row in rows:
        families.setdefault(row.run.family, []).append(row)
    errors = [error for own in families.values() for error in calibrated_errors(own)]
    return median(errors) if errors else None


def _tau_within_sweeps(rows: Iterable[TimedRowAccuracy]) -> tuple[float | None, int]:
    sweeps: dict[str, list[TimedRowAccuracy]] = {}
    for row in rows:
        sweeps.setdefault(f"{row.run.family} / {row.run.sweep}", []).append(row)
    agreement = pairs = num_sweeps = 0
    for sweep in sweeps.values():
        measured = [row.measured_s_per_token for row in sweep]
        if len(sweep) < MIN_SWEEP_ROWS or max(measured) / min(measured) - 1 < MIN_SWEEP_SPREAD:
            continue
        own_agreement, own_pairs = concordance(measured, [row.predicted_s_per_token for row in sweep])
        agreement, pairs, num_sweeps = agreement + own_agreement, pairs + own_pairs, num_sweeps + 1
    return (agreement / pairs if pairs else None), num_sweeps
