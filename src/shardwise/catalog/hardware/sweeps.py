"""Timed collectives by message size, each on the servers it was timed on.

``collective_sweeps.csv`` says which readings of ``achieved.csv`` are one sweep. Points that the issuing host decides,
not the links, are left out: those of messages so small that the time no longer falls with them.
"""

from dataclasses import dataclass
from functools import cache

from shardwise.catalog.hardware.gpus import confidence_of
from shardwise.catalog.hardware.nodes import load_node
from shardwise.catalog.hardware.readings import CollectiveReading, load_collective_readings
from shardwise.catalog.hardware.tables import read_table
from shardwise.cluster import Cluster, Confidence
from shardwise.units import MIB, Bytes, Seconds

HOST_BOUND_RATIO, NETWORK_BOUND_RATIO = 2.5, 1.5
"""A point counts from this multiple of the shortest time of its sweep on. torch issues a collective in 30 to 50 us,
which hides what the links do for shorter calls inside a host (``benchmarks/results/2026-11-27-h100.md``, doubts);
across a network the shortest call is already the fabric's."""
SMALL_START_BYTES = 4 * MIB
"""A sweep that starts above this is one of large messages throughout."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepPoint:
    """One timed message size."""

    num_bytes: Bytes
    """Payload: the whole tensor."""
    duration_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSweep:
    """One collective on one group over message sizes, the smallest first."""

    gpu_id: str
    num_gpus: int
    num_nodes: int
    operation: str
    implementation: str
    node_id: str
    has_in_switch_reduction: bool
    """Whether NVLS was on."""
    points: tuple[SweepPoint, ...]
    source: str
    date: str
    confidence: Confidence

    @property
    def cluster(self) -> Cluster:
        """The servers it was timed on."""
        node = load_node(self.node_id)
        return Cluster(node=node, num_nodes=max(1, self.num_nodes, -(-self.num_gpus // node.gpus_per_node)))

    @property
    def name(self) -> str:
        """The timed operation with its group and implementation, in words."""
        return f"{self.operation} {self.num_gpus} x {self.gpu_id} on {self.num_nodes} nodes ({self.implementation})"


@cache
def load_collective_sweeps() -> tuple[CollectiveSweep, ...]:
    """Every sweep, in file order."""
    readings: dict[tuple[str, int, int, str, str], list[CollectiveReading]] = {}
    for reading in load_collective_readings():
        key = (reading.gpu_id, reading.num_gpus, reading.num_nodes, reading.operation, reading.implementation)
        readings.setdefault(key, []).append(reading)
    sweeps = []
    for row in read_table("collective_sweeps"):
        gpu_id, operation, implementation = (row.text(c) for c in ("accelerator_id", "operation", "implementation"))
        num_gpus, num_nodes = row.count("num_gpus"), row.count("num_nodes")
        sweeps.append(
            CollectiveSweep(
                gpu_id=gpu_id,
                num_gpus=num_gpus,
                num_nodes=num_nodes,
                operation=operation,
                implementation=implementation,
                node_id=row.text("node_id"),
                has_in_switch_reduction=row.claim("in_switch"),
                points=link_bound_points(
                    readings[gpu_id, num_gpus, num_nodes, operation, implementation],
                    ratio=HOST_BOUND_RATIO if num_nodes == 1 else NETWORK_BOUND_RATIO,
                ),
                source=row.sources(),
                date=row.text("date"),
                confidence=confidence_of(row.text("confidence")),
            )
        )
    return tuple(sweeps)


def link_bound_points(readings: list[CollectiveReading], *, ratio: float) -> tuple[SweepPoint, ...]:
    """The points whose time the links decide, the smallest message first."""
    timed = sorted((r.message_bytes, r.duration_s) for r in readings if r.message_bytes and r.duration_s)
    if timed and timed[0][0] <= SMALL_START_BYTES:
        shortest_s, at_bytes = min((duration_s, num_bytes) for num_bytes, duration_s in timed)
        timed = [(b, s) for b, s in timed if b > at_bytes and s >= ratio * shortest_s]
    return tuple(SweepPoint(num_bytes=num_bytes, duration_s=duration_s) for num_bytes, duration_s in timed)
