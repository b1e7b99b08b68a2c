"""Volumes and times of collectives."""

import pytest

from shardwise.course.formulas import collective_time as time
from shardwise.course.formulas import collective_volume as volume
from shardwise.course.formulas import data_parallel_traffic as traffic


@pytest.mark.parametrize("group_size", [2, 3, 7, 64])
def test_all_reduce_is_a_reduce_scatter_and_an_all_gather(group_size):
    whole = volume.all_reduce_bytes(payload_bytes=1e9, group_size=group_size)
    assert whole == 2 * volume.all_gather_bytes(payload_bytes=1e9, group_size=group_size)


def test_nothing_is_sent_by_one_rank():
    assert volume.all_reduce_bytes(payload_bytes=1e9, group_size=1) == 0
    assert traffic.fsdp_bytes(num_params=1e9, dp_shard=1) == 0


def test_ring_steps_are_twice_n_minus_one():
    """By execution for n = 2, 3, 4, 8."""
    assert [volume.ring_all_reduce_steps(group_size=n) for n in (2, 3, 4, 8)] == [2, 4, 6, 14]


def test_fsdp_moves_twice_what_ddp_moves():
    """7B on 8: 49 GB against 24.5 GB."""
    fsdp = traffic.fsdp_bytes(num_params=7e9, dp_shard=8)
    ddp = traffic.ddp_bytes(num_params=7e9, dp_shard=8)
    assert fsdp == 49e9
    assert ddp == 24.5e9


def test_fsdp_with_half_precision_reduction_is_the_textbooks_one_and_a_half():
    fsdp = traffic.fsdp_bytes(num_params=7e9, dp_shard=8, reduce_bytes=2)
    assert fsdp / traffic.ddp_bytes(num_params=7e9, dp_shard=8) == 1.5


def test_collective_counts_of_fsdp2_as_counted():
    """torch 2.13: 9 and 5 for 4 blocks, 161 and 81 for 80."""
    assert traffic.fsdp_all_gather_count(num_blocks=4) == 9
    assert traffic.fsdp_reduce_scatter_count(num_blocks=4) == 5
    assert traffic.fsdp_all_gather_count(num_blocks=80) == 161
    assert traffic.fsdp_reduce_scatter_count(num_blocks=80) == 81


def test_four_nodes_of_b200():
    """stas00/ml-engineering: 4 GiB on 4 x 8 B200 lies between 16.1 and 26.3 ms; measured 22.05."""
    links = {
        "payload_bytes": 4 * 2**30,
        "num_nodes": 4,
        "gpus_per_node": 8,
        "node_bandwidth_bytes_per_s": 738e9,
        "nic_bandwidth_bytes_per_s": 50e9,
    }
    low = time.hierarchical_all_reduce_s(**links, overlaps_levels=True) * 1e3
    high = time.hierarchical_all_reduce_s(**links, overlaps_levels=False) * 1e3
    assert low == pytest.approx(16.1, abs=0.05)
    assert high == pytest.approx(26.3, abs=0.05)
    assert low < 22.05 < high


def test_one_nic_for_the_whole_node_would_be_85_9_ms():
    share = volume.hierarchical_nic_bytes(payload_bytes=4 * 2**30, num_nodes=4, gpus_per_node=8)
    assert share / 50e9 * 1e3 == pytest.approx(16.1, abs=0.05)
    one_nic = volume.hierarchical_nic_bytes(payload_bytes=4 * 2**30, num_nodes=4, gpus_per_node=1)
    assert one_nic / 75e9 * 1e3 == pytest.approx(85.9, abs=0.05)


def test_a_tree_beats_a_ring_in_latency_and_not_in_bandwidth():
    small = {"payload_bytes": 8, "group_size": 1024, "step_latency_s": 5e-6, "bandwidth_bytes_per_s": 50e9}
    large = {**small, "payload_bytes": 16e9, "step_latency_s": 0.0}
    assert time.tree_all_reduce_s(**small) < time.ring_all_reduce_s(**small) / 50
    assert time.tree_all_reduce_s(**large) == pytest.approx(time.ring_all_reduce_s(**large))


@pytest.mark.parametrize("formula", [time.ring_all_reduce_s, time.ring_all_gather_s, time.tree_all_reduce_s])
def test_more_bandwidth_is_never_slower(formula):
    times = [
        formula(payload_bytes=1e8, group_size=7, step_latency_s=3e-6, bandwidth_bytes_per_s=bandwidth)
        for bandwidth in (1e9, 7e9, 3e11)
    ]
    assert times == sorted(times, reverse=True)


def test_h200_ring_plateau_is_four_fifths_of_the_wire():
    """8 x H200, 16 GiB: all-gather 361 GB/s; 18 links x 20.6 GB/s of NCCL's topology table are 371."""
    payload = 16 * 2**30
    seconds = time.ring_all_gather_s(
        payload_bytes=payload, group_size=8, step_latency_s=3.4e-6, bandwidth_bytes_per_s=18 * 20.6e9
    )
    bus = volume.all_gather_bytes(payload_bytes=payload, group_size=8) / seconds
    assert bus / 1e9 == pytest.approx(361, rel=0.03)


def test_pipeline_boundary():
    assert volume.pipeline_boundary_bytes(num_tokens=5, hidden_size=14, tp=7) == 20


def test_tensor_parallel_layer_is_four_all_reduces():
    assert volume.tensor_parallel_layer_bytes(num_tokens=5, hidden_size=7, tp=2) == 4 * 5 * 7 * 2
