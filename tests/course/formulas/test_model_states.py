"""Published bytes per parameter."""

import pytest

from shardwise.course.formulas import model_states as states
from shardwise.units import GB


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


@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_more_ranks_never_hold_more_each(zero_stage):
    sizes = [states.zero_bytes_per_param(dp_shard=ranks, zero_stage=zero_stage) for ranks in (1, 2, 7, 64, 1021)]
    assert sizes == sorted(sizes, reverse=True)


def test_a_higher_stage_never_holds_more():
    sizes = [states.zero_bytes_per_param(dp_shard=7, zero_stage=stage) for stage in (0, 1, 2, 3)]
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == 4
