"""The accuracy promised for memory, on the shipped measured runs."""

import pytest

from shardwise.predict.memory_band import ALLOCATED, QUANTISED, QUANTISED_ALONE, WHOLE_DEVICE
from shardwise.validate.accuracy import memory_accuracy, percentile


@pytest.fixture(scope="module")
def report():
    return memory_accuracy()


def _family(report, name, scope):
    return next(summary for summary in report.families if (summary.name, summary.scope) == (name, scope))


def _overall(report, scope):
    return next(summary for summary in report.overall if summary.scope == scope)


def _reported(report, scope):
    return next(summary for summary in report.reported if summary.scope == scope)


def test_no_plan_of_a_measured_run_is_refused(report):
    assert [(row.run.id, row.refusal) for row in report.rows if row.refusal] == []


def test_allocated_memory_is_within_five_percent_in_the_median(report):
    assert _overall(report, "allocated").median_absolute_fraction <= 0.05
    assert _reported(report, "allocated").median_absolute_fraction <= 0.05


def test_allocated_memory_is_within_twelve_percent_for_nine_runs_in_ten(report):
    """Over all families. Without the fitted ones eleven of 77 readings are LitGPT's QLoRA with a bitsandbytes that
    kept every input; they put the ninth decile there at 27 %."""
    assert _overall(report, "allocated").p90_absolute_fraction <= 0.12


def test_memory_with_single_modules_recomputed_is_within_five_percent(report):
    """Moonlight on eight H100 with none and five sets of Megatron's modules, which nothing was fitted on."""
    rows = [row for row in report.rows if row.run.family == "MBSKILL"]
    assert len({row.run.plan.recipe.recompute_modules for row in rows}) == 6
    assert all(abs(row.signed_error_fraction) <= 0.05 for row in rows)


def test_reserved_memory_of_families_nothing_was_fitted_on_is_close(report):
    """Under torch's usual allocator; three readings under expandable segments have a test of their own."""
    assert _reported(report, "reserved").median_absolute_fraction <= 0.05
    runs = [row.run for row in report.rows if not row.run.plan.recipe.expandable_segments]
    # 0.13 before peft's adapters were counted in fp32, as measured runs hold them: RUNQLORA then lost 1.3 points.
    assert _reported(memory_accuracy(runs=runs), "reserved").p90_absolute_fraction <= 0.135


def test_reserved_memory_under_expandable_segments_is_too_high_by_a_sixth_in_the_one_published_run(report):
    """TORCHAO-006 to 008, one run in three precisions (2025-06): 30.9 GiB are reserved, 36.1 predicted.

    On 28 runs of ours with the same setting 0.5 % are missed at the median (``tests/predict/test_torchtitan_runs.py``).
    """
    rows = [row for row in report.rows if row.run.plan.recipe.expandable_segments]
    assert [row.run.id for row in rows] == ["TORCHAO-006", "TORCHAO-007", "TORCHAO-008"]
    assert all(0 <= row.signed_error_fraction <= 0.17 for row in rows)


def test_every_truncated_llama_on_b200_is_within_one_and_a_half_percent(report):
    rows = [row for row in report.rows if row.run.family == "SIMUB200" and row.run.decides_outcome]
    assert len(rows) >= 16
    for row in rows:
        assert abs(row.signed_error_fraction) <= 0.015, row.run.id


def test_the_other_pipeline_stage_of_those_runs_is_within_two_percent(report):
    rows = [row for row in report.rows if row.run.stage is not None]
    assert len(rows) >= 6
    for row in rows:
        assert abs(row.signed_error_fraction) <= 0.02, row.run.id


@pytest.mark.parametrize(
    ("family", "scope"), [("TTITAN", "reserved"), ("ZBPP", "allocated"), ("SIMUB200", "allocated")]
)
def test_pretraining_families_are_within_six_percent_in_the_median(report, family, scope):
    assert _family(report, family, scope).median_absolute_fraction <= 0.06


def test_fits_or_out_of_memory_is_right_for_ninety_three_runs_in_a_hundred(report):
    assert report.fits.correct_fraction >= 0.93


def test_every_reading_is_summarised_once_per_family(report):
    readings = sum(row.signed_error_fraction is not None for row in report.rows)
    assert sum(summary.num_readings for summary in report.families) == readings


def test_fitted_and_reported_families_do_not_overlap(report):
    readings = sum(row.signed_error_fraction is not None for row in report.rows)
    counted = [s.num_readings for s in (*report.reported, *report.fitted) if s.scope == "all"]
    assert sum(counted) == readings


def _edges(report, *, scopes=("allocated", "reserved"), adapters=("none", "lora", "qlora"), is_alone=False):
    """Percentiles 5 and 95 of measured over predicted bytes of fitted families, and how many readings they are of."""
    ratios = [
        1 / (1 + row.signed_error_fraction)
        for row in report.rows
        if row.is_fitted
        and row.signed_error_fraction is not None
        and row.run.scope in scopes
        and row.run.plan.recipe.adapter in adapters
        and (not is_alone or (row.run.plan.cluster.num_gpus == 1 and row.run.plan.recipe.recompute == "full"))
    ]
    return percentile(ratios, 0.05), percentile(ratios, 0.95), len(ratios)


def test_memory_bands_are_those_of_readings_that_judge_nothing(report):
    low, _, num_readings = _edges(report, adapters=("none", "lora"))
    _, high, _ = _edges(report, adapters=("lora",))
    assert (low, high) == pytest.approx(ALLOCATED, abs=0.015)
    *quantised, num_quantised = _edges(report, adapters=("qlora",))
    assert quantised == pytest.approx(QUANTISED, abs=0.015)
    *alone, num_alone = _edges(report, adapters=("qlora",), is_alone=True)
    assert alone == pytest.approx(QUANTISED_ALONE, abs=0.015)
    *whole_device, num_whole = _edges(report, scopes=("device",))
    assert whole_device == pytest.approx(WHOLE_DEVICE, abs=0.015)
    assert num_readings >= 88
    assert num_quantised >= 60
    assert num_alone >= 25
    assert num_whole >= 84


def test_memory_bands_hold_for_families_that_fitted_nothing_whatever_the_engine(report):
    total = next(summary for summary in report.reported if summary.scope == "all")
    assert 0.88 <= total.in_band_fraction <= 0.96
    engines = {summary.name: summary.in_band_fraction for summary in report.reported_engines}
    assert set(engines) == {"accelerate", "deepspeed", "fsdp1", "megatron", "torchtitan"}
    assert min(engines.values()) >= 0.8
