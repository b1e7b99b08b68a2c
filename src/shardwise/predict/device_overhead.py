"""Device memory beyond the tensors that are alive: cached blocks, the CUDA context and communicators."""

from shardwise.columns import least, most, rounded
from shardwise.ledger import MemoryComponent
from shardwise.plan import Plan
from shardwise.step.inventory import StageInventory
from shardwise.step.native_engine import is_native_engine, uses_units
from shardwise.units import GIB, Bytes

CONTEXT_BYTES = round(0.73 * GIB)
"""CUDA context with cuBLAS and attention kernels loaded: 0.73-0.75 GiB measured on an H100, torch 2.11."""
FIRST_COMMUNICATOR_BYTES = round(0.83 * GIB)
"""First process group and its first collective."""
NEXT_COMMUNICATOR_BYTES = round(0.47 * GIB)
PEER_BYTES = round(0.375 * GIB)
"""Point-to-point channels of a communicator, per peer it sends to or receives from (all-to-all: every other rank)."""
STREAM_POOL_FRACTION = 1.0
"""Share of the gap between the peak of the sum and the sum of every component's own peak that stays cached under FSDP:
its collectives allocate on their own streams, a block of one stream never serves another, and logits leave holes that
blocks do not fill. Fitted on 36 of our own H100 runs (slope 1.007, intercept 0.007 of the peak)."""
SHARED_POOL_FRACTION = 0.31
"""Share of that gap that stays cached without parameter sharding, where one stream's freed blocks are split and reused:
57 runs on one H100."""
ROUNDING_FRACTION = 0.03
"""Share of the peak that is cached beyond the gap, without parameter sharding: 0.01 on one GPU, 0.06 with tensor
parallelism."""
EXPANDABLE_ROUNDING_FRACTION = 0.01
"""Share of the peak that is cached beyond the gap, with expandable segments, on one GPU."""
STREAM_COMPONENTS: tuple[MemoryComponent, ...] = ("gathered_parameters", "gradients")
"""Components FSDP2 allocates on streams of its own: gathers, and outputs of reduce-scatters, the sharded gradients
(torch 2.11 ``_fsdp_collectives.py``, ``foreach_all_gather`` and ``foreach_reduce``)."""


def fixed_bytes(plan: Plan) -> Bytes:
    """Device memory outside the framework's allocator: CUDA context and NCCL communicators.

    Nothing where CPUs compute.

    Source: measured with NCCL 2.28 on one host of H100s (``benchmarks/results``), NVLS off.
    """
    calibration = plan.cluster.calibration
    if plan.cluster.runs_on_cpu:
        return 0
    learned_ratio = 1.0 if calibration is None else calibration.ratio_of("memory outside")
    return rounded(learned_ratio * _catalogued_fixed_bytes(plan))


def _catalogued_fixed_bytes(plan: Plan) -> Bytes:
    layout = plan.layout
    groups = (layout.dp_shard * layout.cp, layout.dp_replicate, layout.tp, layout.cp, layout.pp)
    num_groups = most(1, sum(degree > 1 for degree in groups))
    exchanging_peers = least(layout.ep, plan.cluster.node.gpus_per_node) - 1
    communicators = (
        FIRST_COMMUNICATOR_BYTES
        + NEXT_COMMUNICATOR_BYTES * (num_groups - 1)
        + PEER_BYTES * least(2, layout.pp - 1)
        + (NEXT_COMMUNICATOR_BYTES + PEER_BYTES * exchanging_peers) * (layout.ep > 1)
    )
    return CONTEXT_BYTES + communicators * (layout.world_size > 1)


def has_stream_pools(plan: Plan) -> bool:
    """Whether collectives allocate on streams of their own: under FSDP, and in our trainer's units of whole states.

    Those are units of FSDP2 over an axis of one rank, whose gradients are made on the stream that would reduce them. A
    single rank stays on one stream.
    """
    if is_native_engine(plan) and plan.layout.world_size == 1:
        return False
    is_fsdp_of_one = is_native_engine(plan) and uses_units(layout=plan.layout, recipe=plan.recipe)
    return plan.layout.zero_stage == 3 or is_fsdp_of_one


def reserved_bytes(
    inventory: StageInventory,
    *,
    peak_bytes: Bytes,
    capacity_bytes: Bytes,
    has_stream_pools: bool,
    is_expandable: bool = False,
) -> Bytes:
    """Bytes the caching allocator reserves: freed blocks of one pool do not serve tensors of another.

    Between the peak of the sum and the sum of every pool's own peak; a tensor that names no pool shares one with its
    component. When that exceeds the device, the allocator returns cached blocks instead of failing, so the figure is
    capped at what the device has (or the peak itself). Expandable segments join whatever one stream freed, so that only
    the peaks of the streams remain.
    """
    changes: dict[str, list[int]] = {}
    for tensor in inventory.tensors:
        pool: str = tensor.pool or tensor.component
        if is_expandable:
            pool = tensor.component if has_stream_pools and tensor.component in STREAM_COMPONENTS else "compute"
        change = changes.setdefault(pool, [0] * (len(inventory.moments) + 1))
        change[tensor.first_use] += tensor.num_bytes
        change[tensor.last_use + 1] -= tensor.num_bytes
    gap = sum(_peak(change) for change in changes.values()) - peak_bytes
    if is_expandable:
        cached = peak_bytes * (1 + EXPANDABLE_ROUNDING_FRACTION) + gap
    elif has_stream_pools:
        cached = peak_bytes + STREAM_POOL_FRACTION * gap
    else:
        cached = peak_bytes * (1 + ROUNDING_FRACTION) + SHARED_POOL_FRACTION * gap
    return max(peak_bytes, min(round(cached), capacity_bytes))


def _peak(change: list[int]) -> int:
    total = peak = 0
    for difference in change:
        total += difference
        peak = max(peak, total)
    return peak
