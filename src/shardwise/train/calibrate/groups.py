"""Collectives of every shape of group, and how much they and computation slow each other down."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import torch
import torch.distributed as dist

from shardwise.train.calibrate.clock import Action, Desk, agreed_s

Row = Mapping[str, object]
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast")
MAX_SLOWDOWN = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """This rank's group of one shape; all groups of the shape work at once."""

    ranks: tuple[int, ...]
    group: dist.ProcessGroup

    @property
    def size(self) -> int:
        """Ranks of the group."""
        return len(self.ranks)


def group_sizes(world_size: int) -> list[int]:
    """Sizes of groups: all ranks, halves, and pairs."""
    return sorted({size for size in (world_size, world_size // 2, 2) if size > 1}, reverse=True)


def own_groups(world_size: int) -> list[RankGroup]:
    """This rank's groups, the largest first; every rank makes every group."""
    found = []
    for size in group_sizes(world_size):
        for first in range(0, world_size - size + 1, size):
            ranks = tuple(range(first, first + size))
            group = dist.new_group(list(ranks))
            if dist.get_rank() in ranks:
                found.append(RankGroup(ranks=ranks, group=group))
    return found


def message_sizes(desk: Desk) -> list[int]:
    """Bytes of the messages to time, those that decide most first."""
    if desk.is_tiny:
        return [2**12, 2**16]
    exponents = (24, 27, 20, 29, 16, 22, 12, 18) if desk.is_cuda else (18, 21, 15, 23, 12, 20, 25, 10)
    return [2**exponent for exponent in exponents]


def collective_cases(groups: list[RankGroup], desk: Desk) -> list[tuple[RankGroup, str, int]]:
    """Every collective of every group; sizes outermost, so that a short time leaves out sizes and no collective."""
    cases = product(message_sizes(desk), groups, KINDS)
    return [(group, kind, num_bytes) for num_bytes, group, kind in cases if kind != "send_recv" or group.size == 2]


def collective_row(case: tuple[RankGroup, str, int], desk: Desk) -> Row:
    """One collective call. Bytes are the whole tensor's: gathered, before reduction, or the message."""
    group, kind, num_bytes = case
    duration_s = agreed_s(call_action(group, kind, num_bytes, desk), desk)
    return {"kind": kind, "group_size": group.size, "stride": 1, "num_bytes": num_bytes, "duration_s": duration_s}


def call_action(group: RankGroup, kind: str, num_bytes: int, desk: Desk) -> Action:
    """A call to repeat, on buffers of its own."""
    count = max(group.size, num_bytes // desk.dtype.itemsize)
    whole = torch.zeros(count, device=desk.device, dtype=desk.dtype)
    other = torch.empty_like(whole)
    shard = torch.zeros(count // group.size, device=desk.device, dtype=desk.dtype)
    first = group.ranks[0]
    actions: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(whole, group=group.group),
        "all_gather": lambda: dist.all_gather_into_tensor(other, shard, group=group.group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(shard, whole, group=group.group),
        "all_to_all": lambda: dist.all_to_all_single(other, whole, group=group.group),
        "send_recv": lambda: _one_way(whole, group),
        "broadcast": lambda: dist.broadcast(whole, src=first, group=group.group),
    }
    call = actions[kind]
    return lambda _: call()


def _one_way(message: torch.Tensor, group: RankGroup) -> None:
    """The first rank of a pair sends, the second receives."""
    first, second = group.ranks
    if dist.get_rank() == first:
        dist.send(message, second, group=group.group)
    else:
        dist.recv(message, first, group=group.group)


def overlap_ratio(desk: Desk) -> float:
    """How many times longer computation and a collective take while both run.

    Equal times of both start together: of ``T`` alone they take ``ratio * T`` together.
    """
    num_bytes, width = (2**12, 64) if desk.is_tiny else (2**28, 4096) if desk.is_cuda else (2**22, 512)
    x = torch.randn(width, width, device=desk.device, dtype=desk.dtype)
    message = torch.zeros(num_bytes // desk.dtype.itemsize, device=desk.device, dtype=desk.dtype)
    multiply_s = agreed_s(lambda _: x @ x, desk)
    reduce_s = agreed_s(lambda _: dist.all_reduce(message), desk)
    num_reductions = max(1, round(0.03 / reduce_s))
    num_products = max(1, round(num_reductions * reduce_s / multiply_s))

    def both(_index: int) -> None:
        works = [dist.all_reduce(message, async_op=True) for _ in range(num_reductions)]
        for _ in range(num_products):
            x @ x
        for work in works:
            if work is not None:
                work.wait()

    together_s = agreed_s(both, desk, target_s=0.1)
    line_s, hidden_s = num_products * multiply_s, num_reductions * reduce_s
    ratio = 1 + (together_s - max(line_s, hidden_s)) / min(line_s, hidden_s)
    return max(1.0, min(MAX_SLOWDOWN, ratio))


def group_tables(rows: Iterator[Row]) -> list[Row]:
    """One table for every collective and shape of group, its messages in order."""
    tables: dict[tuple[object, object, object], list[Row]] = {}
    for row in rows:
        tables.setdefault((row["kind"], row["group_size"], row["stride"]), []).append(row)
    return [
        {
            "kind": kind,
            "group_size": group_size,
            "stride": stride,
            "points": [
                {"num_bytes": row["num_bytes"], "duration_s": row["duration_s"]}
                for row in sorted(found, key=lambda row: int(str(row["num_bytes"])))
            ],
        }
        for (kind, group_size, stride), found in tables.items()
    ]
