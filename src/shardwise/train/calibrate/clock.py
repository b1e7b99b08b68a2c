"""Seconds of a piece of work, and what ranks agree on."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

import torch
import torch.distributed as dist

from shardwise.units import Seconds

Action = Callable[[int], object]
"""One call of the work; the argument rotates input sets, so that no call finds its inputs in the cache."""
Case = TypeVar("Case")

MAX_CALLS = 2000
CACHE_BYTES = 64 * 2**20
"""Larger than the last cache of every part that is measured; inputs rotate through twice as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """One rank of a calibration, and how long it has."""

    device: torch.device
    is_tiny: bool = False
    """A few small cases, to try the logic."""

    @property
    def is_cuda(self) -> bool:
        """Whether kernels queue on a device."""
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of training's matrix products on this device."""
        return torch.bfloat16 if self.is_cuda else torch.float32

    @property
    def dtype_name(self) -> str:
        """The catalogue's name of ``dtype``."""
        return "bf16" if self.is_cuda else "fp32"

    def copies(self, num_bytes: int) -> int:
        """Input sets that do not fit into the device's cache together; one where the host computes."""
        return max(1, min(8, 2 * CACHE_BYTES // max(1, num_bytes) + 1)) if self.is_cuda else 1


def wall_s(action: Action, count: int, desk: Desk, *, waits: bool = False) -> Seconds:
    """Seconds of ``count`` calls, one after the other.

    On CPUs the time this thread computed, so that what other programs take meanwhile does not count; all the
    time that passed where the work ``waits`` for other ranks.
    """
    if not desk.is_cuda:
        clock = time.perf_counter if waits else time.thread_time
        started = clock()
        for index in range(count):
            action(index)
        return clock() - started
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for index in range(count):
        action(index)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def typical_s(found: Iterable[Seconds], desk: Desk) -> Seconds:
    """The median on a GPU; on CPUs, which other programs use too, the fastest."""
    return median(found) if desk.is_cuda else min(found)


def loop_s(action: Action, desk: Desk, *, target_s: Seconds = 0.02, repeats: int = 3) -> Seconds:
    """Seconds per call over ``repeats`` loops of about ``target_s`` each."""
    action(0)
    once_s = max(wall_s(action, 2, desk) / 2, 1e-7)
    count = max(1, min(MAX_CALLS, int(target_s / once_s)))
    return typical_s((wall_s(action, count, desk) / count for _ in range(repeats)), desk)


def graph_s(action: Action, desk: Desk, *, target_s: Seconds = 0.012, repeats: int = 3) -> Seconds:
    """Seconds per call without the host's time to issue the calls, which a CUDA graph replays."""
    if not desk.is_cuda:
        return loop_s(action, desk, target_s=target_s, repeats=repeats)
    action(0)
    once_s = max(wall_s(action, 2, desk) / 2, 1e-7)
    count = max(2, min(200, int(target_s / once_s)))
    graph = torch.cuda.CUDAGraph()
    # Other threads of NCCL ask for their events meanwhile, which a capture of all threads would not survive.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for index in range(count):
            action(index)
    graph.replay()
    found = median(wall_s(lambda _: graph.replay(), 1, desk) / count for _ in range(repeats))
    graph.reset()
    return found


def agreed_s(action: Action, desk: Desk, *, target_s: Seconds = 0.02, repeats: int = 3) -> Seconds:
    """Seconds per call of work that all ranks do together, by the slowest of them."""
    action(0)
    count = max(1, min(MAX_CALLS, int(target_s / max(slowest(wall_s(action, 2, desk, waits=True) / 2, desk), 1e-7))))
    found = []
    for _ in range(repeats):
        dist.barrier()
        found.append(wall_s(action, count, desk, waits=True) / count)
    return slowest(typical_s(found, desk), desk)


def slowest(value: float, desk: Desk) -> float:
    """The largest value of all ranks."""
    together = torch.tensor(value, device=desk.device, dtype=torch.float64)
    dist.all_reduce(together, op=dist.ReduceOp.MAX)
    return float(together)


def until(cases: Iterable[Case], *, deadline_s: Seconds, desk: Desk) -> Iterator[Case]:
    """The cases that all ranks still have time for, the first always."""
    for number, case in enumerate(cases):
        if number and slowest(float(time.time() > deadline_s), desk):
            return
        yield case
