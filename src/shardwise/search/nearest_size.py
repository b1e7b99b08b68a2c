"""The nearest size of a cluster that answers a question: between two doublings (or halves) that do and do not."""

from collections.abc import Callable, Iterator
from typing import TypeVar

from shardwise.cluster import Cluster
from shardwise.search.clusters import resized

__all__ = ["nearest_size"]

MAX_HALVINGS = 3
Answer = TypeVar("Answer")


def nearest_size(
    asked: Cluster, *, answer: Callable[[Cluster], Answer | None], max_factor: int, grows: bool = True
) -> Answer | None:
    """The answer on the nearest number of GPUs that is found to have one; more than a server holds fill whole ones.

    The first doubling (or half) that has one and the one before, which has none, are the ends of an interval that is
    halved a few times.

    Args:
        asked: the cluster whose GPUs are too few, or too many.
        answer: of a cluster; ``None`` where it has none.
        max_factor: the largest doubling.
        grows: whether more GPUs are tried, and not fewer.
    """

    def on(num_gpus: int) -> tuple[Answer | None, int]:
        """The answer of a size, and the step to its neighbours."""
        cluster = resized(asked, num_gpus)
        if isinstance(cluster, str):
            return None, 1
        return answer(cluster), cluster.node.gpus_per_node if cluster.num_nodes > 1 else 1

    without = asked.num_gpus
    for num_gpus in _doublings(without, max_factor=max_factor, grows=grows):
        found, unit = on(num_gpus)
        if found is None:
            without = num_gpus
            continue
        having = num_gpus
        for _ in range(MAX_HALVINGS):
            middle = (without + having) // (2 * unit) * unit
            if middle in (0, without, having):
                break
            nearer = on(middle)[0]
            found, having, without = (found, having, middle) if nearer is None else (nearer, middle, without)
        return found
    return None


def _doublings(num_gpus: int, *, max_factor: int, grows: bool) -> Iterator[int]:
    factor = 2
    while factor <= max_factor:
        if grows:
            yield num_gpus * factor
        elif num_gpus % factor == 0:
            yield num_gpus // factor
        factor *= 2
