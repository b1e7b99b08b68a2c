"""NCCL's own choice of algorithm and protocol for a collective, and the time it thereby expects.

Every algorithm and protocol that NCCL would consider is a line ``latency + bytes / bandwidth``, with its tuner's
correction of trees, which are slower for messages of medium size. NCCL takes the fastest; so do we. Latencies of a step
and caps are NCCL's (``src/graph/tuning.cc``, commit 5067397, ``catalog/hardware/data/nccl_constants.csv``), bandwidths
those reached on the links of the placement. Steps over several hosts hold each other up (:data:`QUEUE_RATIO`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, log2
from typing import Literal

from shardwise.formulas.collective_volume import all_gather_factor, once_per_node_ratio
from shardwise.predict.group_placement import FORWARDED_FRACTION, MESSAGE_GROUP_FRACTION, GroupPlacement
from shardwise.predict.nccl_protocols import LL, LL128, PROTOCOLS, SIMPLE, Protocol, ProtocolName, arch_limits
from shardwise.step.inventory import CollectiveKind, ExpertChoice
from shardwise.units import MICROSECOND, BytesPerSecond, Seconds

Algorithm = Literal["ring", "tree", "nvls", "nvls_tree", "pat", "p2p"]

TREE_FRACTION = 0.92
PLAIN_TREE_FRACTION = 0.85
"""A tree whose parent and children share one NIC, as with one rank per host."""
QUEUE_RATIO = 2.4
"""How much longer steps over several hosts take than the sum of their means. A rank begins a step when it has done the
last one and its neighbour has sent: a step that takes longer than others holds up all behind it, and a collective takes
as long as the slowest chain of steps, not the mean one. With times of a step that vary as much as their mean
(exponentially) a ring of LL128 with eight ranks a host takes 2.4 times the sum, whatever its length
(``tests/predict/test_long_rings.py``). A network that carries several steps at once would make it 1.9; of the two, 2.4
was taken with measurements in view (docs/collectives.md)."""
NETWORK_OVERHEAD_US = 1.0
"""Least of any ring step when a network is part of the ring, three times that for Simple; Intel's and most hosts."""
NVLS_LATENCY_US, NVLS_TREE_NETWORK_US = 25.0, 20.9
NVLS_TREE_FRACTION = 0.85
"""NCCL's efficiency of NVLS on Hopper; four H200 nodes reach 310 GB/s where the links would give 375."""
PAT_BASE_US, PAT_NETWORK_US, PAT_STEP_RATIO, PAT_RANK_US, PAT_FRACTION = 8.0, 14.0, 3.5, 2.8, 0.75
"""Parallel aggregated trees: all-gather and reduce-scatter of groups with one rank per host."""
SMALLEST_MESSAGE_BYTES = 64
PEERS_AT_ONCE = 8
"""Ranks that a rank exchanges messages with at the same time; the next ones wait for a round of these (NCCL
``src/include/device.h``, ``NCCL_MAX_DEV_WORK_P2P_PER_BATCH``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One algorithm and protocol as a line through the message sizes."""

    algorithm: Algorithm
    protocol: ProtocolName
    latency_s: Seconds
    """The part of the time that no bandwidth shortens."""
    byte_s: float
    link: str
    """The kind of link that takes longest: the scale-up link, PCIe or the network."""
    corrections: tuple[float, ...] = ()

    def moving_s(self, num_bytes: float) -> Seconds:
        """The part of the time that bytes take."""
        moving_s = num_bytes * self.byte_s
        return moving_s / _tree_efficiency(self.corrections, num_bytes) if self.corrections else moving_s

    def time_s(self, num_bytes: float) -> Seconds:
        """Expected time of one call."""
        return self.latency_s + self.moving_s(num_bytes)


def _tree_efficiency(corrections: tuple[float, ...], num_bytes: float) -> float:
    """The tuner's factor, interpolated between its powers of two so that more bytes never take less time."""
    position = log2(max(num_bytes, SMALLEST_MESSAGE_BYTES) / SMALLEST_MESSAGE_BYTES)
    index = int(position)
    if index >= len(corrections) - 1:
        return corrections[-1]
    return corrections[index] + (position - index) * (corrections[index + 1] - corrections[index])


@lru_cache(maxsize=4096)
def candidates(
    kind: CollectiveKind, placement: GroupPlacement, sent_once: ExpertChoice | None = None
) -> tuple[Candidate, ...]:
    """Algorithms and protocols that NCCL may choose from for one kind of collective of one group.

    All-gather and reduce-scatter, which come last, are one pass of a ring, or PAT with one rank on every host.
    ``sent_once`` is what a token chooses, for an exchange that sends it once to every host and copies it there.
    """
    if kind == "all_reduce":
        return (*_rings(placement, passes=2), *_trees(placement), *_in_switch(placement))
    if kind == "all_to_all":
        return (_exchange(placement, sent_once),)
    if kind == "send_recv":
        return (_message(placement),)
    if kind == "broadcast":
        return tuple(_broadcasts(placement))
    return (*_rings(placement, passes=1), *_aggregated_trees(placement))


def best_candidate(
    kind: CollectiveKind, placement: GroupPlacement, num_bytes: float, sent_once: ExpertChoice | None = None
) -> Candidate:
    """The algorithm and protocol that NCCL expects to be fastest for this message."""
    return min(candidates(kind, placement, sent_once), key=lambda candidate: candidate.time_s(num_bytes))


@dataclass(frozen=True, slots=True)
class _Level:
    """Seconds that one byte of payload takes on one kind of link."""

    link: str
    byte_s: float


def _levels(placement: GroupPlacement) -> tuple[_Level, ...]:
    """One pass of a ring over the kinds of links, which work at the same time: an n-th of the payload stays put."""
    levels = []
    if placement.inner_bandwidth_bytes_per_s:
        factor = all_gather_factor(group_size=placement.size)
        levels.append(_Level(placement.link or "PCIe", factor / placement.inner_bandwidth_bytes_per_s))
    if placement.host_bandwidth_bytes_per_s:
        factor = all_gather_factor(group_size=placement.num_domains) / placement.ranks_per_domain
        levels.append(_Level("PCIe", factor / placement.host_bandwidth_bytes_per_s))
    if placement.num_hosts > 1:
        factor = all_gather_factor(group_size=placement.num_hosts) / placement.ranks_per_host
        levels.append(_Level("network", factor / placement.network_bandwidth_bytes_per_s))
    return tuple(levels)


def _slowest(levels: tuple[_Level, ...]) -> _Level:
    return max(levels, key=lambda level: level.byte_s)


def _tree_depth(placement: GroupPlacement) -> int:
    """Hops from the root of a binary tree over the hosts to its leaves, rounded down as NCCL does."""
    return int(log2(placement.num_hosts))


def _hosts_class(placement: GroupPlacement) -> int:
    return min(placement.num_hosts, 3) - 1


def _channels(placement: GroupPlacement) -> int:
    """Channels of NCCL's graph over several hosts: one per NIC in use, at least two."""
    return max(2, placement.ranks_per_host)


def _low_latency_limit(placement: GroupPlacement) -> BytesPerSecond:
    """Most bytes per second of the LL protocol.

    Over several hosts NCCL indexes its table by the vendor of the CPU: the index is Volta's for all but AMD's.
    """
    limits = arch_limits("Volta" if placement.num_hosts > 1 else placement.arch)
    return limits.low_latency[_hosts_class(placement)]


def _rings(placement: GroupPlacement, *, passes: int) -> Iterator[Candidate]:
    """Rings that visit host after host."""
    level = _slowest(_levels(placement))
    volume = passes * all_gather_factor(group_size=placement.size)
    for protocol in _protocols(placement):
        byte_s = passes * level.byte_s / protocol.ring_fraction
        if protocol is LL:
            byte_s = max(byte_s, volume / _low_latency_limit(placement))
        elif protocol is LL128 and placement.num_hosts > 1:
            limit = arch_limits(placement.arch).ring_ll128[_hosts_class(placement)]
            byte_s = max(byte_s, volume / (limit * _channels(placement)))
        steps_us = _ring_steps_us(protocol, placement, passes)
        latency_us = protocol.ring_base_us + steps_us
        yield Candidate(
            algorithm="ring",
            protocol=protocol.name,
            latency_s=latency_us * MICROSECOND,
            byte_s=byte_s,
            link=level.link,
        )


def _protocols(placement: GroupPlacement) -> tuple[Protocol, ...]:
    return PROTOCOLS if placement.has_ll128 else (LL, SIMPLE)


def _ring_steps_us(protocol: Protocol, placement: GroupPlacement, passes: int) -> float:
    inside_us = protocol.ring_pcie_us if placement.is_pcie else protocol.ring_scale_up_us
    if placement.num_hosts > 1:
        inside_us = max(inside_us, NETWORK_OVERHEAD_US * (3 if protocol is SIMPLE else 1))
    is_alone = placement.ranks_per_host == 1
    network_us = protocol.tree_network_us if is_alone else protocol.ring_network_us
    hops = placement.num_hosts - 1
    steps_us = hops * network_us + (placement.size - 1 - hops) * inside_us
    return passes * (_queued_us(steps_us, placement) + hops * _extra_us(protocol, placement))


def _queued_us(steps_us: float, placement: GroupPlacement) -> float:
    """Microseconds of steps that hold each other up.

    Inside one host they hardly vary, and for ranks alone on their hosts NCCL's latencies hold the waits already.
    """
    holds_up = placement.num_hosts > 1 and placement.ranks_per_host > 1
    return QUEUE_RATIO * steps_us if holds_up else steps_us


def _extra_us(protocol: Protocol, placement: GroupPlacement) -> float:
    """Latency of the fabric itself; Simple pays it twice, for it waits for the flush of what arrived."""
    return placement.extra_latency_us * (2 if protocol is SIMPLE else 1)


def _trees(placement: GroupPlacement) -> Iterator[Candidate]:
    """Two complementary trees over hosts, a chain inside each: latency grows with the logarithm of the hosts."""
    level = _slowest(_levels(placement))
    volume = 2 * all_gather_factor(group_size=placement.size)
    one_host = placement.num_hosts == 1
    shared = PLAIN_TREE_FRACTION if placement.ranks_per_host == 1 else 1.0
    limits, hosts = arch_limits(placement.arch), _hosts_class(placement)
    for protocol in _protocols(placement):
        fraction = TREE_FRACTION * (protocol.host_tree_fraction if one_host else protocol.tree_fraction)
        byte_s = 2 * level.byte_s / fraction
        if protocol is LL:
            byte_s = max(byte_s, volume / _low_latency_limit(placement))
        elif not one_host:
            limit = (limits.tree_ll128 if protocol is LL128 else limits.tree_simple)[hosts]
            byte_s = max(byte_s, volume / (limit * _channels(placement)))
        inside_us = protocol.tree_pcie_us if placement.is_pcie else protocol.tree_scale_up_us
        steps_us = (placement.ranks_per_host - 1) * inside_us + _tree_depth(placement) * protocol.tree_network_us
        steps_us = _queued_us(steps_us, placement) + _tree_depth(placement) * _extra_us(protocol, placement)
        yield Candidate(
            algorithm="tree",
            protocol=protocol.name,
            latency_s=(protocol.tree_base_us + 2 * steps_us) * MICROSECOND,
            byte_s=byte_s / shared,
            link=level.link,
            corrections=protocol.tree_corrections,
        )


def _in_switch(placement: GroupPlacement) -> Iterator[Candidate]:
    """The switch adds and distributes (NVLS); over hosts a tree joins the switches."""
    if not placement.uses_in_switch_reduction:
        return
    inside = (1 + 1 / placement.ranks_per_domain) / placement.switch_bandwidth_bytes_per_s
    if placement.num_hosts == 1:
        yield Candidate(
            algorithm="nvls",
            protocol="Simple",
            latency_s=NVLS_LATENCY_US * MICROSECOND,
            byte_s=inside,
            link=placement.link,
        )
        return
    limit = arch_limits(placement.arch).nvls_tree[_hosts_class(placement)] * _channels(placement)
    crossings = 1 if placement.num_hosts == 2 else 2
    network_rate = placement.network_bandwidth_bytes_per_s * placement.ranks_per_host
    across = max(crossings / (network_rate * NVLS_TREE_FRACTION), 1 / limit)
    network_us = _queued_us(NVLS_TREE_NETWORK_US, placement) + _extra_us(SIMPLE, placement)
    yield Candidate(
        algorithm="nvls_tree",
        protocol="Simple",
        latency_s=(NVLS_LATENCY_US + 2 * _tree_depth(placement) * network_us) * MICROSECOND,
        byte_s=max(inside, across),
        link=placement.link if inside > across else "network",
    )


def _aggregated_trees(placement: GroupPlacement) -> Iterator[Candidate]:
    """All-gather and reduce-scatter by trees, when every rank is alone on its host."""
    if placement.ranks_per_host > 1:
        return
    level = _slowest(_levels(placement))
    network_us = PAT_NETWORK_US + _extra_us(SIMPLE, placement)
    steps_us = _tree_depth(placement) * network_us / PAT_STEP_RATIO + placement.size * PAT_RANK_US
    yield Candidate(
        algorithm="pat",
        protocol="Simple",
        latency_s=(PAT_BASE_US + steps_us) * MICROSECOND,
        byte_s=level.byte_s / PAT_FRACTION,
        link=level.link,
    )


def _broadcasts(placement: GroupPlacement) -> Iterator[Candidate]:
    """The whole payload passes every rank of a ring once."""
    factor = all_gather_factor(group_size=placement.size)
    for ring in _rings(placement, passes=1):
        protocol = next(protocol for protocol in PROTOCOLS if protocol.name == ring.protocol)
        if placement.num_hosts > 1:
            step_us = protocol.tree_network_us if protocol is SIMPLE else protocol.ring_network_us
            step_us = _queued_us(step_us, placement) + _extra_us(protocol, placement)
        else:
            step_us = protocol.ring_pcie_us if placement.is_pcie else protocol.ring_scale_up_us
        yield Candidate(
            algorithm="ring",
            protocol=ring.protocol,
            latency_s=(protocol.ring_base_us + placement.size * step_us) * MICROSECOND,
            byte_s=ring.byte_s / factor,
            link=ring.link,
        )


def _exchange(placement: GroupPlacement, sent_once: ExpertChoice | None) -> Candidate:
    """Every rank sends an equal part to every other; what leaves the host uses the rank's own share of the NICs.

    With copies of tokens sent once per host, the copies are made there, one for each rank with experts of the token:
    less crosses the network, and all of what arrives passes the links inside.
    """
    part = 1 / placement.size
    choice = sent_once if placement.num_hosts > 1 else None
    levels = []
    if placement.exchange_bandwidth_bytes_per_s:
        share, rate = part * (placement.ranks_per_domain - 1), placement.exchange_bandwidth_bytes_per_s
        if choice is not None:
            share = _once_ratio(choice, placement.size)
            rate = min(rate, placement.inner_line_bytes_per_s * FORWARDED_FRACTION)
        levels.append(_Level(placement.link or "PCIe", share / rate))
    if placement.host_bandwidth_bytes_per_s:
        share = part * (placement.ranks_per_host - placement.ranks_per_domain)
        levels.append(_Level("PCIe", share / placement.host_bandwidth_bytes_per_s))
    rounds = 1 if choice is not None else ceil((placement.size - 1) / PEERS_AT_ONCE)
    latency_us = SIMPLE.ring_base_us + (rounds - 1) * SIMPLE.ring_scale_up_us
    if placement.num_hosts > 1:
        latency_us += (rounds - 1) * (SIMPLE.ring_network_us + _extra_us(SIMPLE, placement) - SIMPLE.ring_scale_up_us)
        share = part * (placement.size - placement.ranks_per_host)
        rate = placement.network_exchange_bytes_per_s
        if choice is not None:
            share *= _once_ratio(choice, placement.num_hosts)
            rate = min(rate, placement.network_line_bytes_per_s * MESSAGE_GROUP_FRACTION)
        levels.append(_Level("network", share / rate))
        latency_us += SIMPLE.ring_network_us + _extra_us(SIMPLE, placement)
    return _peer_to_peer(latency_us, levels)


def _once_ratio(choice: ExpertChoice, num_nodes: int) -> float:
    """Copies of a token that go to so many nodes, or ranks, each at most once, over the experts that it chooses."""
    return once_per_node_ratio(
        num_nodes=num_nodes,
        num_experts_per_tok=choice.num_experts_per_tok,
        num_groups=choice.num_groups,
        num_groups_per_tok=choice.num_groups_per_tok,
    )


def _message(placement: GroupPlacement) -> Candidate:
    """One message to one neighbour."""
    if placement.num_hosts > 1:
        step_us = SIMPLE.ring_network_us + _extra_us(SIMPLE, placement)
        level = _Level("network", 1 / placement.network_message_bytes_per_s)
    elif placement.num_domains > 1:
        step_us, level = SIMPLE.ring_pcie_us, _Level("PCIe", 1 / placement.host_bandwidth_bytes_per_s)
    else:
        step_us = SIMPLE.ring_pcie_us if placement.is_pcie else SIMPLE.ring_scale_up_us
        level = _Level(placement.link or "PCIe", 1 / placement.inner_bandwidth_bytes_per_s)
    return _peer_to_peer(SIMPLE.ring_base_us + step_us, [level])


def _peer_to_peer(latency_us: float, levels: list[_Level]) -> Candidate:
    level = _slowest(tuple(levels))
    return Candidate(
        algorithm="p2p",
        protocol="Simple",
        latency_s=latency_us * MICROSECOND,
        byte_s=level.byte_s,
        link=level.link,
    )
