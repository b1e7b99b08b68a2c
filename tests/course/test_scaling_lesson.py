"""The scaling lesson's functions run as they are printed, and its tables say what is wrong in them."""

import numpy as np
import pytest

from shardwise.course.scaling_lesson import (
    memory_calculator,
    mixed_precision_comparison,
    run_all_demos,
    simulate_data_parallelism,
    simulate_pipeline_parallelism,
    simulate_tensor_parallelism,
)
from shardwise.errors import SimulationError


def test_the_mean_over_shards_is_the_mean_over_samples_of_equal_shards_alone():
    data = np.arange(10.0)

    def model_fn(shard):
        return float(shard.mean()), shard

    assert simulate_data_parallelism(data[:9], 3, lambda shard: (float(shard.mean()), shard.sum()))[0] == 4.0
    assert simulate_data_parallelism(data, 1, model_fn)[0] == 4.5
    assert simulate_data_parallelism(data, 3, lambda shard: (float(shard.mean()), shard.sum()))[0] == pytest.approx(
        (1.5 + 5.0 + 8.0) / 3
    )


def test_slices_of_columns_give_the_whole_product():
    generator = np.random.default_rng(3)
    x, weight = generator.standard_normal((2, 6)), generator.standard_normal((6, 8))
    output, error = simulate_tensor_parallelism(x, weight, 4)
    assert output.shape == (2, 8)
    assert error < 1e-14
    with pytest.raises(SimulationError, match="3 GPUs do not divide 8 columns"):
        simulate_tensor_parallelism(x, weight, 3)


@pytest.mark.parametrize(("num_microbatches", "total_time", "bubble"), [(1, 64, 0.75), (16, 304, 3 / 19)])
def test_the_lessons_pipeline_takes_as_long_as_printed(num_microbatches, total_time, bubble):
    timeline, total, idle = simulate_pipeline_parallelism(32, 4, num_microbatches)
    assert (total, idle) == (total_time, pytest.approx(bubble))
    assert timeline[3, 0, "fwd"] == (24, 32)
    assert timeline[0, 0, "bwd"] == (total_time - 8, total_time)
    assert len(timeline) == 8 * num_microbatches


def test_the_calculator_prints_the_lessons_gigabytes():
    seventy = memory_calculator(70, num_gpus=8, sharding="fsdp")
    assert seventy["per_gpu_total_gb"] == 175.0
    assert not seventy["fits_on_80gb"]
    assert memory_calculator(7, num_gpus=8, sharding="zero1")["optimizer_gb"] == 7.0
    assert memory_calculator(7, hidden_dim=4096, num_layers=32)["activations_gb"] == pytest.approx(2.147, abs=0.001)
    assert memory_calculator(7, optimizer="none")["optimizer_gb"] == 0
    assert mixed_precision_comparison(7) == {
        "fp32_total_gb": 112.0,
        "fp16_with_master_gb": 112.0,
        "mixed_bf16_gb": 84.0,
        "savings_vs_fp32": 0.25,
    }


def test_all_demos_print_the_lessons_lines_and_mark_what_is_wrong(capsys):
    run_all_demos()
    written = capsys.readouterr().out
    for line in (
        "  8 GPUs: loss=30.2175, grad_norm=53.0517",
        "  8 GPUs: output_shape=(4, 8192), max_error below 1e-12 of the largest: True",
        "  16 micro-batches: total_time= 304, bubble=15.8%",
        "       7B     none     1     91.0GB         No      119.0GB",
        "  405B: FP32=6480GB, Mixed BF16=4860GB, Savings=25%",
        "  ! the text's 'about 19%' with 16 micro-batches is idle time over ideal time, 18.75%",
        "  ! with the master copy that it needs, 7B keeps 112GB: 0% of the states are saved",
    ):
        assert line in written.splitlines()
    assert written.count("  ! ") == 9
