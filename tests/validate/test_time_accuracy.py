"""The summaries of step-time errors, on predictions made by hand."""

from dataclasses import replace

import pytest

from shardwise.errors import LayoutError
from shardwise.prediction import TimePrediction
from shardwise.validate.shipped_runs import timed_runs
from shardwise.validate.time_accuracy import (
    TimedRowAccuracy,
    calibrated_errors,
    compare_time,
    summarise_time,
    time_accuracy,
)


def runs_of(family):
    return [run for run in timed_runs().runs if run.family == family]


def constant(step_s):
    prediction = TimePrediction(
        step_s=step_s, step_low_s=0.9 * step_s, step_high_s=1.2 * step_s, components=(), communication=()
    )
    return lambda plan: prediction


def row(run, predicted_s):
    return TimedRowAccuracy(
        run=run,
        predicted_s=predicted_s,
        low_s=0.9 * predicted_s,
        high_s=1.2 * predicted_s,
        signed_error_fraction=predicted_s / run.measured_s - 1,
    )


def test_half_the_measured_time_is_an_optimistic_half():
    run = replace(runs_of("KORTH")[0], measured_s=2.0)
    compared = compare_time(run, constant(1.0))
    assert compared.signed_error_fraction == -0.5
    assert not compared.is_in_band
    assert compare_time(replace(run, measured_s=1.1), constant(1.0)).is_in_band


def test_a_refused_plan_is_kept_with_its_reason():
    def refuse(plan):
        raise LayoutError("no", code="layout-heads", fix="set tp=4")

    compared = compare_time(runs_of("KORTH")[0], refuse)
    assert compared.refusal == "layout-heads: no"
    assert compared.predicted_s is None
    report = time_accuracy(predictor=refuse, runs=runs_of("KORTH"))
    assert report.families == ()
    assert report.reported is None


def test_bias_error_and_coverage_are_those_of_the_rows():
    run = replace(runs_of("KORTH")[0], measured_s=1.0)
    summary = summarise_time("X", [row(run, 0.5), row(run, 0.9), row(run, 1.1)])
    assert summary.median_signed_fraction == pytest.approx(-0.1)
    assert summary.median_absolute_fraction == pytest.approx(0.1)
    assert summary.max_absolute_fraction == pytest.approx(0.5)
    assert summary.in_band_fraction == pytest.approx(2 / 3)


def test_only_rows_of_one_sweep_are_ranked():
    base = replace(runs_of("KORTH")[0], measured_s=1.0, sweep="a")
    tokens = base.plan.tokens_per_step
    assert tokens > 0
    sweep = [replace(base, measured_s=s) for s in (1.0, 2.0, 3.0)]
    other = [replace(base, measured_s=s, sweep="b") for s in (1.0, 2.0, 3.0)]
    rows = [row(run, predicted) for run, predicted in zip(sweep, (1.0, 2.0, 3.0), strict=True)]
    rows += [row(run, predicted) for run, predicted in zip(other, (30.0, 20.0, 10.0), strict=True)]
    summary = summarise_time("X", rows)
    assert summary.num_sweeps == 2
    assert summary.kendall_tau_ratio == 0.0
    assert summarise_time("X", rows[:2]).kendall_tau_ratio is None


def test_a_common_bias_vanishes_with_one_measured_row_of_like_plans():
    run = replace(runs_of("KORTH")[0], measured_s=1.0)
    assert calibrated_errors([row(run, 0.7), row(run, 0.7), row(run, 0.7)]) == pytest.approx([0.0, 0.0, 0.0])
    assert calibrated_errors([row(run, 0.7)]) == []
    assert summarise_time("X", [row(run, 0.7)]).calibrated_median_fraction is None


def test_every_other_row_is_tried_as_the_measured_one():
    run = replace(runs_of("KORTH")[0], measured_s=1.0)
    errors = calibrated_errors([row(run, 1.0), row(run, 1.0), row(run, 1.25)])
    assert errors == pytest.approx([0.1, 0.1, 0.25])
    summary = summarise_time("X", [row(run, 1.0), row(run, 1.0), row(run, 1.25)])
    assert summary.calibrated_median_fraction == pytest.approx(0.1)


def test_a_row_of_another_family_calibrates_nothing():
    run = replace(runs_of("KORTH")[0], measured_s=1.0)
    other = replace(run, family="OTHER")
    rows = [row(run, 0.5), row(run, 0.5), row(other, 2.0), row(other, 2.0)]
    assert summarise_time("all", rows).calibrated_median_fraction == pytest.approx(0.0)


def test_the_median_over_families_counts_a_large_family_once():
    report = time_accuracy(predictor=constant(1.0), runs=[*runs_of("KORTH"), *runs_of("MTNLG"), *runs_of("TUNE")])
    own = sorted(summary.calibrated_median_fraction for summary in report.families if not summary.has_gaps)
    assert report.family_calibrated_fraction == pytest.approx(own[1])


def test_rows_with_gaps_are_shown_apart_and_not_counted():
    faithful, marked = runs_of("QWEN1")[0], next(run for run in runs_of("QWEN1") if run.gaps)
    report = time_accuracy(predictor=constant(1.0), runs=[faithful, marked])
    assert [(summary.name, summary.has_gaps) for summary in report.families] == [("QWEN1", False), ("QWEN1", True)]
    assert report.reported.num_rows == 1
    assert report.with_gaps.num_rows == 1


def test_the_split_of_fitted_and_reported_families_is_part_of_the_report():
    report = time_accuracy(predictor=constant(1.0), runs=runs_of("KORTH"))
    assert report.reported_families == ("KORTH",)
    assert not set(report.fitted_families) & set(report.reported_families)


def test_megatrons_eight_rows_are_predicted():
    """arXiv:2205.05198 table 5: 2.8 % in the mean, 5.85 % at most; Calculon 3.65 and 8.9, SimuMax 3.1 and 6.0."""
    table = [run for run in runs_of("KORTH") if run.plan.layout.dp_replicate == 1]
    errors = [abs(row.signed_error_fraction) for row in time_accuracy(runs=table).rows]
    assert len(errors) == 8
    assert sum(errors) / 8 <= 0.03
    assert max(errors) <= 0.06
