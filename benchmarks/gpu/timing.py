"""Times GPU work: graph replays where the work can be captured, event-timed loops where it cannot."""

import statistics
import time
from collections.abc import Callable

import torch

Action = Callable[[int], object]
"""One call of the work; the argument rotates input sets so that no call finds its inputs in the cache."""


def _wall_s(action: Action, count: int, device: torch.device) -> float:
    if device.type != "cuda":
        started = time.perf_counter()
        for index in range(count):
            action(index)
        return time.perf_counter() - started
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for index in range(count):
        action(index)
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def loop_s(action: Action, *, device: torch.device, target_s: float = 0.02, repeats: int = 3) -> float:
    """Median seconds per call over ``repeats`` loops of about ``target_s`` each."""
    action(0)
    once = max(_wall_s(action, 2, device) / 2, 1e-7)
    count = max(2, min(2000, int(target_s / once)))
    return statistics.median(_wall_s(action, count, device) / count for _ in range(repeats))


def graph_s(action: Action, *, device: torch.device, target_s: float = 0.015, repeats: int = 3) -> float:
    """The same without launch gaps: the calls are captured into a graph and the graph is replayed."""
    if device.type != "cuda":
        return loop_s(action, device=device, target_s=target_s, repeats=repeats)
    action(0)
    once = max(_wall_s(action, 2, device) / 2, 1e-7)
    count = max(2, min(400, int(target_s / once)))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for index in range(count):
            action(index)
    graph.replay()
    median = statistics.median(_wall_s(lambda _: graph.replay(), 1, device) / count for _ in range(repeats))
    graph.reset()
    return median
