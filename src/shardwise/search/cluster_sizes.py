"""The clusters of a sweep: GPU types with or without a price, each in several sizes."""

import json
from dataclasses import dataclass

from shardwise.catalog import read_cluster
from shardwise.cluster import Cluster
from shardwise.errors import ClusterError, ShardwiseError
from shardwise.search.bounds import MAX_DEGREE, IntRange
from shardwise.search.clusters import at_most, with_num_nodes

__all__ = ["GpuType", "parse_gpu_type", "resized", "sizes_in", "typed_cluster"]

MAX_SIZES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuType:
    """A GPU or a server by its name in the catalogue, and the user's price."""

    name: str
    usd_per_gpu_hour: float | None = None
    """``None`` for the price in the catalogue."""


def parse_gpu_type(text: str) -> GpuType:
    """A type written as ``h100-sxm``, or as ``h100-sxm=2.10`` with dollars per GPU and hour.

    >>> parse_gpu_type("h100-sxm=2.10").usd_per_gpu_hour
    2.1
    """
    name, has_price, price = text.strip().partition("=")
    try:
        return GpuType(name=name.strip(), usd_per_gpu_hour=float(price) if has_price else None)
    except ValueError:
        raise ClusterError(
            f"'{price[:40]}' is not a price of {name[:40]}",
            code="cluster-value",
            fix=f"write {name[:40]}=2.50, in dollars per GPU and hour",
        ) from None


def sizes_in(limit: IntRange) -> tuple[int, ...]:
    """The sizes of a sweep: those of a list, or the ends of an interval and the doublings between.

    >>> sizes_in(IntRange(low=8, high=96))
    (8, 16, 32, 64, 96)

    Raises:
        ClusterError: the interval has no end, or there are too many sizes to search.
    """
    sizes = list(limit.values)
    if not sizes and limit.high < MAX_DEGREE:
        size = limit.low
        while size < limit.high:
            sizes.append(size)
            size *= 2
        sizes.append(limit.high)
    if not 0 < len(sizes) <= MAX_SIZES:
        raise ClusterError(
            f"{len(sizes) or 'endless'} sizes cannot be searched one by one; at most {MAX_SIZES} can",
            code="search-bounds",
            fix="write --gpus 8..512, or a list such as 8,64,512",
        )
    return tuple(sizes)


def typed_cluster(gpu_type: GpuType, num_gpus: int) -> Cluster | str:
    """So many GPUs of a type, or why there is no such cluster.

    Raises:
        ClusterError: the catalogue has no such type.
    """
    unit = read_cluster(gpu_type.name)
    if num_gpus % unit.num_gpus:
        return f"{num_gpus} GPUs do not fill {gpu_type.name} servers of {unit.num_gpus}"
    try:
        cluster = read_cluster(f"{num_gpus // unit.num_gpus}x{gpu_type.name}")
        if gpu_type.usd_per_gpu_hour is None:
            return cluster
        described = json.loads(cluster.spec_json)
        return read_cluster({**described, "usd_per_gpu_hour": gpu_type.usd_per_gpu_hour})
    except ShardwiseError as error:
        if error.code != "cluster-partial-node":
            raise
        return error.message


def resized(cluster: Cluster, num_gpus: int) -> Cluster | str:
    """The same kind of cluster with so many GPUs, or why there is none."""
    per_node = cluster.node.gpus_per_node
    if num_gpus < per_node:
        try:
            return at_most(with_num_nodes(cluster, 1), num_gpus)
        except ClusterError as error:
            return error.message
    if num_gpus % per_node:
        return f"{num_gpus} GPUs do not fill servers of {per_node}"
    return with_num_nodes(cluster, num_gpus // per_node)
