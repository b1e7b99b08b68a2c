"""Steps of pipelines with unequal stages."""

import pytest

from shardwise.formulas.pipeline_makespan import uneven_pipeline_s


def test_uneven_makespan_is_the_even_one_when_stages_are_equal():
    """p=4, m=16, F=B=W=1: 57 for GPipe and 1F1B by simulation."""
    assert uneven_pipeline_s(max_stage_s=3.0, sum_stages_s=12.0, num_microbatches=16) == 57


@pytest.mark.parametrize(("last_ratio", "published_percent_low"), [(1.3, 14), (1.6, 24)])
def test_the_mean_based_form_is_low_for_a_heavy_last_stage(last_ratio, published_percent_low):
    """Event simulation, p=4, m=16: 14 and 24 % low."""
    stages = [1.0, 1.0, 1.0, last_ratio]
    true = uneven_pipeline_s(max_stage_s=last_ratio, sum_stages_s=sum(stages), num_microbatches=16)
    mean = sum(stages) / 4
    closed = (16 + 3) * mean
    assert (1 - closed / true) * 100 == pytest.approx(published_percent_low, abs=0.5)
