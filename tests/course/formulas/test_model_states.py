"""Published bytes per parameter."""

import pytest

from shardwise.course.formulas import model_states as states
from shardwise.units import GB, GIB


@pytest.mark.parametrize(("zero_stage", "published_gb"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_matches_zero_paper_figure_1(zero_stage, published_gb):
    """arXiv:1910.02054 figure 1: 7.5B parameters, 64-way data parallel, Adam."""
    per_rank = states.zero_model_state_bytes(num_params=7_500_000_000, dp_shard=64, zero_stage=zero_stage)
    assert per_rank / GB == pytest.approx(published_gb, abs=0.05)


@pytest.mark.parametrize(
    ("dp_shard", "published_gb"),
    [(1, (120, 120, 120)), (4, (52.5, 41.3, 30)), (16, (35.6, 21.6, 7.5)), (256, (30.4, 15.4, 0.47))],
)
def test_matches_zero_paper_table_1(dp_shard, published_gb):
    """arXiv:1910.02054 table 1, 7.5B parameters: P_os, P_os+g, P_os+g+p."""
    computed = [
        states.zero_model_state_bytes(num_params=7_500_000_000, dp_shard=dp_shard, zero_stage=stage) / GB
        for stage in (1, 2, 3)
    ]
    assert computed == pytest.approx(published_gb, abs=0.06)


@pytest.mark.parametrize(
    ("precision", "unsharded", "at_8"), [("bf16", 18, 6 + 1.5), ("fp16", 20, 4 + 2), ("fp32", 16, 8 + 1)]
)
def test_matches_the_table_of_megatrons_distributed_optimizer(precision, unsharded, at_8):
    assert states.megatron_bytes_per_param(precision=precision) == unsharded
    assert states.megatron_bytes_per_param(precision=precision, dp_shard=8, has_distributed_optimizer=True) == at_8


@pytest.mark.parametrize(("offload", "published_gib"), [("none", 6.10), ("optimizer", 0.79), ("parameters", 0.12)])
def test_matches_the_printout_in_deepspeeds_memory_page(offload, published_gib):
    """docs "Memory Requirements": t5-3b (2851M, largest layer 32M) on one node with 8 GPUs; counts in millions."""
    computed = states.deepspeed_zero3_gpu_bytes(
        num_params=2851e6, largest_layer_params=32e6, num_gpus=8, offload=offload
    )
    assert computed / GIB == pytest.approx(published_gib, abs=0.011)


@pytest.mark.parametrize(("offloads_parameters", "published_gib"), [(True, 71.71), (False, 63.74)])
def test_matches_deepspeeds_host_memory(offloads_parameters, published_gib):
    computed = states.deepspeed_offload_host_bytes(num_params=2851e6, offloads_parameters=offloads_parameters)
    assert computed / GIB == pytest.approx(published_gib, abs=0.03)


def test_zero_2_with_offload_keeps_the_half_precision_weights():
    """docs "Memory Requirements": 5.31 GB for t5-3b with offload_optimizer=cpu."""
    computed = states.deepspeed_zero2_gpu_bytes(num_params=2851e6, num_gpus=8, offloads_optimizer=True)
    assert computed / GIB == pytest.approx(5.31, abs=0.005)


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_more_ranks_never_hold_more_each(zero_stage):
    sizes = [states.zero_bytes_per_param(dp_shard=ranks, zero_stage=zero_stage) for ranks in (1, 2, 7, 64, 1021)]
    assert sizes == sorted(sizes, reverse=True)


def test_a_higher_stage_never_holds_more():
    sizes = [states.zero_bytes_per_param(dp_shard=7, zero_stage=stage) for stage in (0, 1, 2, 3)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4


def test_conventions_differ_for_the_same_adam_run():
    assert states.fsdp2_bytes_per_param(dp_shard=1) == 16
    assert states.pure_bf16_bytes_per_param() == 8
    assert states.bf16_moments_bytes_per_param() == 12
    assert states.megatron_bytes_per_param() == 18


def test_adafactor_and_lora_count_rows_plus_columns():
    assert states.adafactor_second_moment_bytes(num_rows=7, num_columns=11) == 72
    assert states.lora_params(rank=3, in_features=7, out_features=11) == 54
