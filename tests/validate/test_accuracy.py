"""Interval errors, percentiles, summaries and the confusion table, on hand-made numbers."""

from dataclasses import replace

import pytest
from benchmarks.published.parts import figure_interval_bytes

from shardwise.errors import LayoutError
from shardwise.predict.memory import predict_memory
from shardwise.validate.accuracy import (
    FitSummary,
    RowAccuracy,
    compare,
    fit_summary,
    interval_error_fraction,
    memory_accuracy,
    percentile,
    summarise,
    summarise_by_family,
    summarise_by_scope,
)
from shardwise.validate.shipped_runs import measured_runs

GIB = 1_073_741_824


@pytest.mark.parametrize(
    ("predicted", "low", "high", "error"),
    [
        (31, 30, 32, 0.0),
        (30, 30, 32, 0.0),
        (32, 30, 32, 0.0),
        (27, 30, 32, -0.1),
        (40, 30, 32, 0.25),
        (44, 40, 40, 0.1),
    ],
)
def test_an_error_is_zero_inside_the_interval_and_counts_from_the_nearest_edge_outside(predicted, low, high, error):
    assert interval_error_fraction(predicted=predicted, low=low, high=high) == pytest.approx(error)


def test_gb_spans_from_decimal_gigabytes_to_gib():
    assert figure_interval_bytes(figure="30", unit="GB") == (30_000_000_000, 32_212_254_720)


def test_gib_is_taken_at_its_word():
    assert figure_interval_bytes(figure="82.4", unit="GiB") == (88_476_326_298, 88_476_326_298)


def test_mib_is_taken_at_its_word():
    assert figure_interval_bytes(figure="70730", unit="MiB") == (74_165_780_480, 74_165_780_480)


def test_gb_known_to_be_decimal_is_a_point():
    assert figure_interval_bytes(figure="36.226", unit="GB (1e9)") == (36_226_000_000, 36_226_000_000)


@pytest.mark.parametrize(
    ("values", "fraction", "expected"),
    [
        ([1.0, 2.0, 3.0, 4.0, 5.0], 0.9, 4.6),
        ([5.0, 1.0, 4.0, 2.0, 3.0], 0.5, 3.0),
        ([7.0], 0.9, 7.0),
        ([0.0, 10.0], 0.9, 9.0),
        ([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0, 23.0, 29.0, 31.0], 0.9, 29.0),
    ],
)
def test_percentiles_interpolate_between_order_statistics(values, fraction, expected):
    assert percentile(values, fraction) == pytest.approx(expected)


def test_a_summary_keeps_the_sign_of_the_median_and_the_size_of_the_rest():
    errors = [-0.02, -0.03, -0.05, 0.01, -0.11]
    rows = [replace(_row(error=error), is_in_band=abs(error) < 0.04) for error in errors]
    summary = summarise("family", "allocated", rows)
    assert summary.num_readings == 5
    assert summary.median_signed_fraction == pytest.approx(-0.03)
    assert summary.median_absolute_fraction == pytest.approx(0.03)
    assert summary.p90_absolute_fraction == pytest.approx(0.086)
    assert summary.max_absolute_fraction == pytest.approx(0.11)
    assert summary.in_band_fraction == pytest.approx(3 / 5)


def _row(*, scope="allocated", error=None, outcome="fits", predicted_fits=None, family="ZBPP"):
    run = replace(measured_runs().runs[0], family=family, scope=scope, outcome=outcome)
    return RowAccuracy(
        run=run, predicted_bytes=GIB, predicted_fits=predicted_fits, signed_error_fraction=error, refusal=""
    )


def test_the_confusion_table_counts_both_kinds_of_mistake():
    rows = [
        *[_row(outcome="fits", predicted_fits=True)] * 7,
        *[_row(outcome="fits", predicted_fits=False)] * 2,
        *[_row(outcome="oom", predicted_fits=True)] * 3,
        *[_row(outcome="oom", predicted_fits=False)] * 5,
        _row(outcome="oom", predicted_fits=None),
    ]
    table = fit_summary("all", rows)
    assert table == FitSummary(name="all", num_fits_right=7, num_fits_wrong=2, num_oom_wrong=3, num_oom_right=5)
    assert table.num_rows == 17
    assert table.correct_fraction == pytest.approx(12 / 17)


def test_scopes_are_never_mixed_but_for_the_total():
    rows = [_row(scope="allocated", error=0.02), _row(scope="reserved", error=0.2), _row(scope="device", error=-0.4)]
    summaries = {summary.scope: summary for summary in summarise_by_scope("all", rows)}
    assert summaries["allocated"].max_absolute_fraction == pytest.approx(0.02)
    assert summaries["reserved"].max_absolute_fraction == pytest.approx(0.2)
    assert summaries["device"].median_signed_fraction == pytest.approx(-0.4)
    assert summaries["all"].num_readings == 3


def test_a_family_is_summarised_per_scope():
    rows = [
        _row(family="A", error=0.03),
        _row(family="A", error=0.05),
        _row(family="B", error=-0.07),
        _row(family="A", scope="reserved", error=0.11),
    ]
    summaries = summarise_by_family(rows)
    assert [(s.name, s.scope, s.num_readings) for s in summaries] == [
        ("A", "allocated", 2),
        ("A", "reserved", 1),
        ("B", "allocated", 1),
    ]


def _run(run_id):
    return next(run for run in measured_runs().runs if run.id == run_id)


def test_a_refused_plan_is_kept_with_the_refusal():
    def refuse(plan):
        raise LayoutError("tp=8 needs eight heads", code="layout-heads", fix="set tp=4")

    row = compare(_run("SIMUB200-001"), refuse)
    assert row.refusal == "layout-heads: tp=8 needs eight heads"
    assert row.predicted_fits is None
    assert row.signed_error_fraction is None


def test_a_reading_is_compared_with_the_figure_of_its_own_scope():
    prediction = predict_memory(_run("SIMUB200-001").plan)
    allocated = compare(_run("SIMUB200-001"), lambda plan: prediction)
    reserved = compare(_run("SIMUB200-001/reserved"), lambda plan: prediction)
    stage = compare(_run("SIMUB200-001/allocated-stage-1"), lambda plan: prediction)
    assert allocated.predicted_bytes == max(s.peak_allocated_bytes for s in prediction.stages)
    assert reserved.predicted_bytes == max(s.peak_reserved_bytes for s in prediction.stages)
    assert stage.predicted_bytes == prediction.stages[1].peak_allocated_bytes


def test_twice_the_truth_is_reported_as_twice_the_truth():
    def doubled(plan):
        prediction = predict_memory(plan)
        stages = tuple(replace(s, peak_allocated_bytes=2 * s.peak_allocated_bytes) for s in prediction.stages)
        return replace(prediction, stages=stages)

    report = memory_accuracy(predictor=doubled, runs=[_run("SIMUB200-001"), _run("SIMUB200-003")])
    assert report.families[0].median_signed_fraction > 0.95
