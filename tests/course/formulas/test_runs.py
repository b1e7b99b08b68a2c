"""The time of an optimizer update on GPUs."""

import pytest

from shardwise.course.formulas import kernel_time


def test_adam_on_four_h100_is_a_fifth_of_a_second():
    """17.5B parameters per GPU: 0.18 s with 30 bytes, 0.17 s with 28."""
    seconds = kernel_time.gpu_adam_s(num_params=17.5e9, memory_bandwidth_bytes_per_s=3.35e12)
    assert seconds == pytest.approx(0.17, abs=0.005)
