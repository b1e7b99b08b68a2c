"""Which steps of a run its step time is the median of."""

import pytest

from shardwise.train.measuring import steady_records
from train.step_records import step_record


@pytest.mark.parametrize(
    ("num_steps", "sampled", "measured"),
    [
        (7, (3, 5), [4, 6, 7]),
        (4, (3,), [4]),
        (3, (3,), [2]),
        (2, (2,), [2]),  # the profiler slows it down, but the first one compiles
        (1, (), [1]),
        (1, (1,), [1]),
        (0, (), []),
    ],
)
def test_the_first_step_is_measured_only_where_there_is_no_other(num_steps, sampled, measured):
    records = [step_record(step=step, is_sampled=step in sampled) for step in range(1, num_steps + 1)]
    assert [kept.step for kept in steady_records(records)] == measured
