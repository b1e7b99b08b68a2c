"""NCCL's choices as its own tuner makes them, and its tables as the catalogue holds them."""

import pytest

from catalog.tables import rows
from shardwise.catalog import read_cluster
from shardwise.predict.group_placement import place_group
from shardwise.predict.nccl_protocols import ARCH_LIMITS, PROTOCOLS
from shardwise.predict.nccl_tuner import best_candidate, candidates
from shardwise.step.inventory import ExpertChoice
from shardwise.units import GIB, MIB

EIGHT = ExpertChoice(num_experts_per_tok=8)


def placed(cluster, size, stride=1, **settings):
    return place_group(cluster=read_cluster(cluster), size=size, stride=stride, **settings)


def choice(cluster, kind, num_bytes, size, stride=1, **settings):
    chosen = best_candidate(kind, placed(cluster, size, stride, **settings), num_bytes)
    return chosen.algorithm, chosen.protocol


@pytest.mark.parametrize(
    ("cluster", "kind", "num_bytes", "size", "expected"),
    [
        ("1 x dgx-h100", "all_reduce", 8, 8, ("ring", "LL")),
        ("1 x dgx-h100", "all_gather", 8 * MIB, 8, ("ring", "LL128")),
        ("1 x dgx-h100", "all_gather", GIB, 8, ("ring", "Simple")),
        ("1 x dgx-a100-640", "all_reduce", GIB, 8, ("ring", "Simple")),
        ("128 x dgx-h100", "all_reduce", 8, 1024, ("tree", "LL")),
        ("128 x dgx-h100", "all_reduce", 4 * GIB, 1024, ("nvls_tree", "Simple")),
        ("4 x aws-p5en.48xlarge", "all_reduce", 4 * GIB, 32, ("ring", "Simple")),
        ("2 x aws-p5.48xlarge", "all_reduce", 4 * GIB, 16, ("nvls_tree", "Simple")),
    ],
)
def test_small_messages_take_low_latency_and_large_ones_bandwidth(cluster, kind, num_bytes, size, expected):
    """The default choice on four H200 nodes is published as a ring (stas00/ml-engineering)."""
    assert choice(cluster, kind, num_bytes, size) == expected


@pytest.mark.parametrize(("gpu", "first"), [("dgx-h200", 5), ("dgx-b200", 6)])
def test_the_switch_adds_from_as_many_gpus_as_published(gpu, first):
    """4 H200 and 5 B200 took a ring; one more took NVLS (stas00/ml-engineering)."""
    cluster = f"1 x {gpu}"
    assert choice(cluster, "all_reduce", 8 * GIB, first - 1)[0] == "ring"
    assert choice(cluster, "all_reduce", 8 * GIB, first)[0] == "nvls"


def test_the_switch_is_left_alone_where_it_is_off_or_absent():
    assert choice("1 x dgx-h200", "all_reduce", GIB, 8, has_in_switch_reduction=False)[0] == "ring"
    assert choice("1 x dgx-a100-640", "all_reduce", GIB, 8)[0] == "ring"
    assert choice("1 x dgx-h200", "all_gather", GIB, 8)[0] == "ring"


@pytest.mark.parametrize("cluster", ["1 x generic-8x-4090-pcie", "4 x generic-8x-4090-pcie"])
def test_the_128_byte_protocol_needs_links_that_keep_stores_in_order(cluster):
    """NCCL enables LL128 up to PATH_NVB inside a host and PATH_PXN to its NICs."""
    names = {c.protocol for c in candidates("all_reduce", placed(cluster, 8 * int(cluster[0])))}
    assert names == {"LL", "Simple"}


def test_aggregated_trees_need_one_rank_a_host():
    assert {c.algorithm for c in candidates("all_gather", placed("16 x dgx-h100", 16, 8))} == {"ring", "pat"}
    assert {c.algorithm for c in candidates("all_gather", placed("16 x dgx-h100", 128))} == {"ring"}


def test_latencies_are_the_tuners_times_what_steps_hold_each_other_up():
    """1,024 ranks on 128 hosts: 127 steps of 14 us and 896 of 3.4; trees 2 (7 x 4 + 7 x 14); the base is paid once."""
    ring, tree = (
        next(c for c in candidates(kind, placed("128 x dgx-h100", 1024)) if (c.algorithm, c.protocol) == wanted)
        for kind, wanted in (("all_gather", ("ring", "Simple")), ("all_reduce", ("tree", "Simple")))
    )
    assert ring.latency_s == pytest.approx((8.4 + 2.4 * 4824.4) * 1e-6)
    assert tree.latency_s == pytest.approx((8.4 + 2.4 * 252) * 1e-6)


def test_steps_hold_each_other_up_only_where_several_ranks_of_a_host_take_part():
    """Inside a host, and of ranks alone on theirs, the tuner's latencies stand: 7 x 3.4 us, 127 x 14 us."""
    inside, alone = (
        next(c for c in candidates("all_gather", placement) if (c.algorithm, c.protocol) == ("ring", "Simple"))
        for placement in (placed("1 x dgx-h100", 8), placed("128 x dgx-h100", 128, 8))
    )
    assert inside.latency_s == pytest.approx((8.4 + 7 * 3.4) * 1e-6)
    assert alone.latency_s == pytest.approx((8.4 + 127 * 14) * 1e-6)


def test_corrections_and_limits_are_those_of_the_catalogue():
    constants = rows("nccl_constants")
    corrections = [line for line in constants if line["name"] == "treeCorrectionFactor"]
    for protocol in PROTOCOLS:
        expected = [float(line["value"]) for line in corrections if line["protocol"] == protocol.name]
        assert list(protocol.tree_corrections) == expected
    table = {(line["name"], line["scope"], line["nodes_class"]): line["value"] for line in constants}
    names = {
        "ring_ll128": "perChMaxRingLL128Bw",
        "tree_ll128": "perChMaxTreeLL128Bw",
        "tree_simple": "perChMaxTreeBw",
        "nvls_tree": "perChMaxNVLSTreeBw",
    }
    for limits in ARCH_LIMITS:
        for field, name in names.items():
            expected = [float(table[name, limits.arch, hosts]) for hosts in ("1 node", "2 nodes", "4+ nodes")]
            assert [limit / 1e9 for limit in getattr(limits, field)] == expected


def test_an_exchange_over_hosts_meets_eight_ranks_at_a_time():
    """31 other ranks take four rounds of network steps (14 us), 15 take two; DeepEP's own kernels have no rounds."""

    def latency_us(size, sent_once=None):
        (one,) = candidates("all_to_all", placed(f"{size // 8} x dgx-h100", size), sent_once)
        return one.latency_s * 1e6

    step_us = latency_us(32) - latency_us(16)
    assert step_us == pytest.approx(2 * (latency_us(16) - latency_us(16, EIGHT)))
    assert latency_us(32, EIGHT) == pytest.approx(latency_us(16, EIGHT))
    assert step_us > 20


@pytest.mark.parametrize(("hosts", "printed"), [(2, (76.8, 68.0)), (4, (57.7, 57.5)), (8, (50.6, 51.0))])
def test_tokens_sent_once_travel_as_fast_as_hybrid_ep_prints(hosts, printed):
    """4,096 tokens of 7,168 in 16 bits, eight experts, on H100: GB/s of dispatch and combine at best, kernels alone.

    The rates count a token for every host with experts of its own, the sender's too (deepseek-ai/DeepEP, hybrid-ep
    ``docs/README_Hybrid-EP.md`` and ``tests/utils.py``, 2026). Two servers decide the rate inside a host; four and
    eight were not used.
    """
    token_bytes, copies = 4096 * 7168 * 2, 8
    (one,) = candidates("all_to_all", placed(f"{hosts} x dgx-h100", 8 * hosts), EIGHT)
    sent = hosts * (1 - (1 - 1 / hosts) ** copies)
    mean = 2 / sum(1 / rate for rate in printed)
    assert sent * token_bytes / one.time_s(copies * token_bytes) / 1e9 == pytest.approx(mean, rel=0.07)


def test_a_router_that_keeps_four_of_eight_groups_sends_a_token_to_at_most_four_hosts():
    """DeepSeek-V3 over eight servers: 3.6 distinct ones, where free choice would reach 5.25 (arXiv:2412.19437)."""
    limited = ExpertChoice(num_experts_per_tok=8, num_groups=8, num_groups_per_tok=4)
    free_s, limited_s = (
        candidates("all_to_all", placed("8 x hgx-h800", 64), choice)[0].time_s(512 * MIB) for choice in (EIGHT, limited)
    )
    reached = 4 * (1 - 0.75**8), 8 * (1 - 0.875**8)
    assert limited_s / free_s == pytest.approx(reached[0] / reached[1], rel=0.01)


def test_a_broadcast_moves_the_whole_payload_once():
    (fastest,) = (c for c in candidates("broadcast", placed("1 x dgx-h100", 8)) if c.protocol == "Simple")
    assert 1 / fastest.byte_s == pytest.approx(450e9 * 0.81)
