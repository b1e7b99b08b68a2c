"""What a device holds beyond the tensors that are alive: cached blocks, the CUDA context and communicators."""

from shardwise.ledger import MEMORY_COMPONENTS, MemoryComponent
from shardwise.plan import Plan
from shardwise.step.inventory import StageInventory
from shardwise.step.placement import Stage
from shardwise.units import GIB, Bytes

CONTEXT_BYTES = round(0.73 * GIB)
"""CUDA context with cuBLAS and attention kernels loaded: 0.73-0.75 GiB measured on an H100, torch 2.11."""
FIRST_COMMUNICATOR_BYTES = round(0.9 * GIB)
NEXT_COMMUNICATOR_BYTES = round(0.6 * GIB)
ALL_TO_ALL_BYTES = round(3.3 * GIB)
UNSHARED_FRACTION = 1.0
"""Share of a component's own peak that no other component's cached blocks serve (1: pools are disjoint)."""


def fixed_bytes(plan: Plan, stage: Stage) -> Bytes:
    """Device memory outside the framework's allocator: CUDA context and NCCL communicators."""
    del stage
    layout = plan.layout
    groups = sum(
        degree > 1 for degree in (layout.dp_shard * layout.cp, layout.dp_replicate, layout.tp, layout.cp, layout.pp)
    )
    total = CONTEXT_BYTES
    if plan.layout.world_size > 1:
        total += FIRST_COMMUNICATOR_BYTES + NEXT_COMMUNICATOR_BYTES * max(0, groups - 1)
    if layout.ep > 1:
        total += ALL_TO_ALL_BYTES
    return total


def reserved_bytes(inventory: StageInventory, *, peak_bytes: Bytes, capacity_bytes: Bytes) -> Bytes:
    """What the caching allocator holds: freed blocks of one size rarely serve tensors of another.

    Between the peak of the sum and the sum of every component's own peak; when that exceeds the device, the allocator
    returns cached blocks instead of failing, so the figure is capped at what the device has (or the peak itself).
    """
    changes: dict[MemoryComponent, list[int]] = {name: [0] * (len(inventory.moments) + 1) for name in MEMORY_COMPONENTS}
    for tensor in inventory.tensors:
        changes[tensor.component][tensor.born] += tensor.num_bytes
        changes[tensor.component][tensor.dies + 1] -= tensor.num_bytes
    own_peaks = sum(_peak(change) for change in changes.values())
    cached = peak_bytes + round(UNSHARED_FRACTION * (own_peaks - peak_bytes))
    return max(peak_bytes, min(cached, capacity_bytes))


def _peak(change: list[int]) -> int:
    total = peak = 0
    for difference in change:
        total += difference
        peak = max(peak, total)
    return peak
