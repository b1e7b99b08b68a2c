"""Link types: line rate, latency and what was reached on them; and the network they make for a node."""

from dataclasses import dataclass
from functools import cache
from typing import Literal

from shardwise.catalog.hardware.gpus import confidence_of
from shardwise.catalog.hardware.tables import TableRow, read_table
from shardwise.cluster import Confidence, Network
from shardwise.errors import ClusterError
from shardwise.units import GB_PER_S, MICROSECOND, BytesPerSecond, Seconds

LinkScope = Literal["nic", "node", "gpu", "reading"]
_SCOPES: tuple[LinkScope, ...] = ("nic", "node", "gpu", "reading")
UNKNOWN_FABRIC = "eth-100"
"""Stands in, flagged, where the catalogue does not know a node's fabric: one 100 Gb/s Ethernet port per node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One link type, one direction."""

    id: str
    kind: str
    generation: str
    scope: LinkScope
    """The unit that the rate is for: one NIC, a whole node, one GPU's scale-up port, or a reading that is no link."""
    bandwidth_bytes_per_s: BytesPerSecond
    latency_s: Seconds
    """One small message, end to end; 0 for links inside a node, whose latency is in the NCCL tables."""
    latency_note: str
    achieved_fraction: float
    """Measured share of the line rate; 0 when there is no reading."""
    achieved_what: str
    source: str
    date: str
    confidence: Confidence
    notes: str

    @property
    def joins_nodes(self) -> bool:
        """True for fabrics between nodes."""
        return self.scope in ("nic", "node")


@cache
def load_networks() -> tuple[Link, ...]:
    """Every link type of the catalogue, in file order."""
    return tuple(_link(row) for row in read_table("networks"))


def load_link(link_id: str) -> Link:
    """The link type with exactly this id.

    Raises:
        ClusterError: ``cluster-network`` when there is none.
    """
    for link in load_networks():
        if link.id == link_id:
            return link
    names = ", ".join(link.id for link in load_networks() if link.joins_nodes)
    raise ClusterError(
        f"no network {link_id!r} in the catalogue; known are {names}",
        code="cluster-network",
        fix="use one of these, or give network_gbit_per_s_per_node",
    )


def network_between_nodes(link_id: str, *, gpus_per_node: int) -> Network:
    """The fabric that this link type makes: one NIC per GPU, or the node's rate shared by its GPUs.

    Raises:
        ClusterError: ``cluster-network`` for an unknown link, or one that does not leave the node.

    >>> network_between_nodes("ib-ndr", gpus_per_node=4).bandwidth_bytes_per_s
    50000000000.0
    """
    link = load_link(link_id)
    if not link.joins_nodes:
        raise ClusterError(
            f"{link_id} is not a fabric between nodes",
            code="cluster-network",
            fix="use ib-ndr, roce-400, eth-100 or another fabric",
        )
    share = 1 if link.scope == "nic" else gpus_per_node
    return network_of(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / share)


def network_of(link: Link, *, bandwidth_bytes_per_s: BytesPerSecond, is_assumed: bool = False) -> Network:
    """A fabric of this link type with a stated rate per GPU."""
    return Network(
        id=link.id,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        latency_s=link.latency_s,
        source=link.source,
        date=link.date,
        kind=link.kind,
        achieved_fraction=link.achieved_fraction,
        is_assumed=is_assumed,
        confidence=link.confidence,
        notes=link.notes,
    )


def _link(row: TableRow) -> Link:
    return Link(
        id=row.text("id"),
        kind=row.text("kind"),
        generation=row.text("generation"),
        scope=next(scope for scope in _SCOPES if scope == row.text("link_scope")),
        bandwidth_bytes_per_s=row.number("link_gb_per_s") * GB_PER_S,
        latency_s=row.number("planning_latency_us") * MICROSECOND,
        latency_note=row.text("planning_latency_note"),
        achieved_fraction=row.number("achieved_fraction"),
        achieved_what=row.text("achieved_what"),
        source=row.sources(),
        date=row.text("date"),
        confidence=confidence_of(row.text("confidence")),
        notes=row.text("notes"),
    )
