"""Which steps of a run its step time is the median of."""

import pytest

from shardwise.train.measuring import steady_records
from shardwise.train.metrics import StepRecord


def record(step, *, is_sampled):
    return StepRecord(
        step=step,
        loss=1.0,
        gradient_norm=1.0,
        learning_rate=0.1,
        num_tokens=8,
        step_s=1.0,
        data_wait_s=0.0,
        tokens_per_s=8.0,
        tokens_per_s_per_gpu=4.0,
        mfu_fraction=None,
        peak_allocated_bytes=0,
        peak_reserved_bytes=0,
        is_sampled=is_sampled,
    )


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
    records = [record(step, is_sampled=step in sampled) for step in range(1, num_steps + 1)]
    assert [kept.step for kept in steady_records(records)] == measured
