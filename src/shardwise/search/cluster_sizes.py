"""The clusters of a sweep: GPU types with or without a price, each in several sizes, and the batch they share."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import lcm

from shardwise.catalog import priced_cluster, read_cluster
from shardwise.cluster import Cluster
from shardwise.errors import ClusterError, ShardwiseError
from shardwise.rules.token_batch import TokenBatch, rounded_batch
from shardwise.search.bounds import MAX_DEGREE, IntRange

__all__ = ["GpuType", "common_batch", "parse_gpu_type", "sizes_in", "typed_cluster"]

MAX_SIZES = 16
MAX_BATCH_RATIO = 2
"""A batch that none asked for may grow this far beyond what suits the largest cluster for every one to divide it."""


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
        return priced_cluster(read_cluster(f"{num_gpus // unit.num_gpus}x{gpu_type.name}"), gpu_type.usd_per_gpu_hour)
    except ShardwiseError as error:
        if error.code != "cluster-partial-node":
            raise
        return error.message


def common_batch(sizes: Iterable[int], *, seq_len: int, tokens: float, is_given: bool = True) -> TokenBatch:
    """The batch of all clusters of a sweep, which as many of them as possible divide, the largest first.

    Args:
        sizes: GPUs of each cluster.
        seq_len: tokens of a sequence.
        tokens: what was asked for, or what suits the largest cluster.
        is_given: whether they were asked for, and are therefore kept to more closely.

    >>> common_batch((3, 5, 7), seq_len=8192, tokens=4 * 2**20, is_given=False).num_sequences
    525

    Raises:
        RecipeError: fewer tokens than one sequence has.
    """
    asked = sorted(set(sizes), reverse=True)
    shared = _shared(asked, most=MAX_BATCH_RATIO * tokens / seq_len)
    if not is_given:
        size = max(1, round(tokens / seq_len / shared)) * shared
        sentence = f"global_batch_size={size}: none was given; the same on every cluster, a multiple of {shared:,}"
        batch = TokenBatch(num_sequences=size, num_sharing_gpus=shared, sentence=sentence)
    else:
        batch = rounded_batch(tokens=tokens, seq_len=seq_len, num_gpus=shared)
    uneven = ", ".join(f"{size:,}" for size in sorted(asked) if batch.num_sequences % size)
    if not uneven:
        return batch
    doubt = f"{batch.sentence}; not a multiple of {uneven} GPUs, which therefore cannot all read different sequences"
    return replace(batch, sentence=doubt)


def _shared(sizes: Iterable[int], *, most: float) -> int:
    """The common multiple of the first size, and of those after it that leave it at most so large."""
    shared = 1
    for size in sizes:
        both = lcm(shared, size)
        if shared == 1 or both <= most:
            shared = both
    return shared
