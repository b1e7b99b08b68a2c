"""Servers and cloud instances, joined with their accelerator, their fabric and its prices."""

from dataclasses import dataclass
from functools import cache

from shardwise.catalog.hardware.gpus import confidence_of, load_gpu
from shardwise.catalog.hardware.networks import UNKNOWN_FABRIC, load_link, network_between_nodes, network_of
from shardwise.catalog.hardware.prices import prices_of
from shardwise.catalog.hardware.tables import TableRow, read_table
from shardwise.cluster import Network, Node
from shardwise.errors import ClusterError
from shardwise.units import GB, GB_PER_S, GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeName:
    """The names under which a server is found; the server itself is built when it is asked for."""

    id: str
    gpu_id: str
    names: tuple[str, ...]
    """Every accepted spelling: the id, the provider's name, the id without the provider, listed aliases."""


@cache
def node_names() -> tuple[NodeName, ...]:
    """Every server with its names, in file order."""
    return tuple(_names(row) for row in read_table("nodes"))


@cache
def load_nodes() -> tuple[Node, ...]:
    """Every server and cloud instance of the catalogue, in file order."""
    return tuple(load_node(row.text("id")) for row in read_table("nodes"))


@cache
def load_node(node_id: str) -> Node:
    """The server with exactly this id.

    Raises:
        ClusterError: ``cluster-unknown`` when there is none.

    >>> load_node("aws-p5.48xlarge").network.bandwidth_bytes_per_s
    50000000000.0
    """
    for row in read_table("nodes"):
        if row.text("id") == node_id:
            return _node(row)
    raise ClusterError(
        f"no server with the id {node_id!r} in the catalogue",
        code="cluster-unknown",
        fix="list the ids with `shardwise catalog nodes`",
    )


def _names(row: TableRow) -> NodeName:
    node_id, provider = row.text("id"), row.text("provider").lower()
    short_id = node_id.removeprefix(f"{provider}-")
    return NodeName(
        id=node_id,
        gpu_id=row.text("accelerator_id"),
        names=(node_id, short_id, row.text("name"), *row.names("aliases")),
    )


def _node(row: TableRow) -> Node:
    gpu = load_gpu(row.text("accelerator_id"))
    return Node(
        id=row.text("id"),
        name=row.text("name"),
        gpu=gpu,
        gpus_per_node=row.count("gpus_per_node"),
        scale_up_domain_gpus=row.count("scale_up_domain_gpus"),
        scale_up_bandwidth_bytes_per_s=row.number("scale_up_gb_per_s_per_gpu") * GB_PER_S,
        network=_network(row),
        host_memory_bytes=round(row.number("host_memory_gib") * GIB),
        nvme_bytes=round(row.number("nvme_tb") * 1000 * GB),
        prices=prices_of(gpu.id, provider=row.text("provider"), sku=row.text("name")),
        source=row.sources(),
        date=row.text("date"),
        provider=row.text("provider"),
        scale_up=row.text("scale_up"),
        num_nics=row.count("num_nics"),
        confidence=confidence_of(row.text("confidence")),
        notes=row.text("notes"),
    )


def _network(row: TableRow) -> Network:
    if not row.text("network_id"):
        assumed = network_between_nodes(UNKNOWN_FABRIC, gpus_per_node=row.count("gpus_per_node"))
        link = load_link(UNKNOWN_FABRIC)
        return network_of(link, bandwidth_bytes_per_s=assumed.bandwidth_bytes_per_s, is_assumed=True)
    link = load_link(row.text("network_id"))
    return network_of(link, bandwidth_bytes_per_s=row.number("network_gb_per_s_per_gpu") * GB_PER_S)
