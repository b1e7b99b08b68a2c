"""How much longer a collective on CPUs takes after computation, as in a step, than in a loop of its own.

Ranks arrive one after the other, threads that move the message sleep, and its buffers left the cache. Products and a
pass over memory stand for what a step computes between two collectives.
"""

import time
from itertools import cycle
from statistics import fmean, median

import torch
import torch.distributed as dist

from shardwise.train.calibrate.clock import Action, Desk, agreed_s, loop_s, slowest, typical_s, until
from shardwise.train.calibrate.groups import RankGroup, call_action
from shardwise.units import Bytes, Seconds

KINDS = ("all_gather", "all_reduce", "reduce_scatter")
WORK_S = 4e-3
"""Computation between two collectives, which lasts as long as in a step of small blocks."""
NUM_PARTS = 8
"""Buffers that passes over memory take in turn, so that no cache holds the next one."""
NUM_LOOPS, NUM_TURNS = 8, 10
"""Loops, so many that other programs leave one of them as undisturbed as in other tables, and calls in each."""


def arrival_skew_s(group: RankGroup, desk: Desk, *, deadline_s: Seconds) -> Seconds:
    """How much longer the calls of one group take after computation: the median over kinds and message sizes."""
    compute = _computation(desk)
    found = []
    for kind, num_bytes in until(_cases(desk), deadline_s=deadline_s, desk=desk):
        call = call_action(group, kind, num_bytes, desk)
        call(0)
        found.append(max(0.0, _behind_computation_s(compute, call, desk) - agreed_s(call, desk)))
    return median(found)


def _cases(desk: Desk) -> list[tuple[str, Bytes]]:
    """Kinds of collectives and message sizes, which links move in less time than ranks compute in between."""
    exponents = (12,) if desk.is_tiny else (16, 19)
    return [(kind, 2**exponent) for exponent in exponents for kind in KINDS]


def _behind_computation_s(compute: Action, call: Action, desk: Desk) -> Seconds:
    """Seconds of a call that every rank makes after computation, as the mean over ranks."""
    loops = torch.zeros(NUM_LOOPS, dtype=torch.float64)
    for number in range(-1, NUM_LOOPS):  # the first warms up, and the next takes its place
        dist.barrier()
        loops[max(0, number)] = fmean(_call_s(compute, call) for _ in range(NUM_TURNS))
    dist.all_reduce(loops)
    return typical_s((loops / dist.get_world_size()).tolist(), desk)


def _call_s(compute: Action, call: Action) -> Seconds:
    compute(0)
    started_s = time.perf_counter()
    call(0)
    return time.perf_counter() - started_s


def _computation(desk: Desk) -> Action:
    """Products and a pass over memory that no cache holds, as much on every rank."""
    width, num_bytes = (64, 2**16) if desk.is_tiny else (256, 2**22)
    x = torch.randn(width, width, device=desk.device, dtype=desk.dtype)
    out = torch.empty_like(x)
    numel = num_bytes // desk.dtype.itemsize
    parts = cycle([torch.zeros(numel, device=desk.device, dtype=desk.dtype) for _ in range(NUM_PARTS)])
    pass_s = slowest(loop_s(lambda _: next(parts).add_(1), desk), desk)
    product_s = slowest(loop_s(lambda _: torch.mm(x, x, out=out), desk), desk)
    count = 1 if desk.is_tiny else max(1, round((WORK_S - pass_s) / product_s))

    def compute(_index: int) -> None:
        next(parts).add_(1)
        for _ in range(count):
            torch.mm(x, x, out=out)

    return compute
