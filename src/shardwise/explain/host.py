"""Finding on offload: the memory and the room on drives that each node needs, has and lacks, and the remedy."""

from collections.abc import Iterator

from shardwise.engines.table import ENGINES
from shardwise.explain.records import Finding, Quantity
from shardwise.explain.told import told
from shardwise.plan import Plan
from shardwise.prediction import MemoryPrediction
from shardwise.units import GIB, format_gb, format_gib

__all__ = [
    "enough_host_gib",
    "host_finding",
    "host_numbers",
    "host_remedy",
    "host_shortage",
]

HOST_SIZES_GIB = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""GiB of host memory that servers are sold with."""


def enough_host_gib(memory: MemoryPrediction) -> int | None:
    """The smallest usual size of a host that holds what is offloaded to it; ``None`` beyond the largest."""
    return next((size for size in HOST_SIZES_GIB if size * GIB >= memory.host_bytes_per_node), None)


def host_numbers(memory: MemoryPrediction) -> tuple[Quantity, ...]:
    """Need and capacity of a node."""
    return (
        told("host per node", memory, "memory.host_bytes", "bytes"),
        told("host capacity", memory, "memory.host_capacity_bytes", "bytes"),
        Quantity(name="missing on the host", value=memory.host_missing_bytes, unit="bytes"),
        told("NVMe per node", memory, "memory.nvme_bytes", "traffic_bytes"),
    )


def host_shortage(memory: MemoryPrediction) -> str:
    """A sentence on what each node lacks; empty when it lacks nothing."""
    parts = []
    if memory.host_missing_bytes:
        parts.append(
            f"{format_gib(memory.host_missing_bytes)} of host memory are missing on each node "
            f"({format_gib(memory.host_bytes_per_node)} of {format_gib(memory.host_capacity_bytes)})"
        )
    if memory.nvme_missing_bytes:
        parts.append(
            f"{format_gb(memory.nvme_missing_bytes)} are missing on the drives of each node "
            f"({format_gb(memory.nvme_bytes_per_node)} of {format_gb(memory.nvme_capacity_bytes)})"
        )
    return " and ".join(parts)


def host_remedy(plan: Plan, memory: MemoryPrediction) -> str:
    """A sentence on what to change when host memory or drives are what a plan lacks."""
    return "; or ".join(_remedies(plan, memory)) + "; the changes below were predicted again"


def _remedies(plan: Plan, memory: MemoryPrediction) -> Iterator[str]:
    recipe, per_node = plan.recipe, min(plan.cluster.node.gpus_per_node, plan.layout.world_size)
    enough = enough_host_gib(memory)
    if memory.host_missing_bytes and enough is not None:
        yield f"nodes with {enough} GiB of host memory"
    if per_node > 1:
        yield f"fewer than {per_node} ranks on each node: all of them share its memory"
    if memory.host_missing_bytes and recipe.offload in ("optimizer", "parameters"):
        is_offered = "nvme" in ENGINES[plan.engine].offloads
        yield "offload=nvme" if is_offered else "offload=nvme with engine=deepspeed"
    if recipe.offload != "none" or recipe.activation_offload:
        yield "less offload over more GPUs"


def host_finding(plan: Plan, memory: MemoryPrediction) -> Finding | None:
    """Compares what offloading needs of a node with what the node has; ``None`` when nothing is offloaded."""
    if not memory.host_bytes_per_node and not memory.nvme_bytes_per_node:
        return None
    numbers = host_numbers(memory)
    needs = f"Offloading needs {format_gib(memory.host_bytes_per_node)} of host memory per node"
    if not memory.host_capacity_bytes:
        return Finding(
            topic="memory",
            claim=f"{needs}; how much the node has is not known.",
            numbers=numbers,
            suggestion="check free -g on a node",
        )
    has = format_gib(memory.host_capacity_bytes)
    if memory.fits_host:
        return Finding(topic="memory", claim=f"{needs}; it has {has}.", numbers=numbers)
    gpu = "the GPU holds it and the host does not" if memory.fits_device else "neither the GPU nor the host holds it"
    return Finding(
        topic="memory",
        claim=f"{needs}, and it has {has}: {gpu}.",
        numbers=numbers,
        because=f"{host_shortage(memory)}; {min(plan.cluster.node.gpus_per_node, plan.layout.world_size)} ranks share "
        "the host of a node",
        suggestion=host_remedy(plan, memory),
    )
