"""Finding on offload: the memory and the room on drives that each node needs, has and lacks."""

from shardwise.explain.records import Finding, Quantity
from shardwise.explain.told import told
from shardwise.prediction import MemoryPrediction
from shardwise.units import format_gb, format_gib

__all__ = ["CHANGES_BELOW", "host_finding", "host_numbers", "host_shortage"]

CHANGES_BELOW = "see the changes below; each was predicted again"


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


def host_finding(memory: MemoryPrediction) -> Finding | None:
    """What offloading needs of a node that holds it; ``None`` without offload, and where the headroom says the lack."""
    if not memory.fits_host or not (memory.host_bytes_per_node or memory.nvme_bytes_per_node):
        return None
    needs = f"Offloading needs {format_gib(memory.host_bytes_per_node)} of host memory per node"
    is_known = memory.host_capacity_bytes > 0
    has = f"it has {format_gib(memory.host_capacity_bytes)}" if is_known else "how much the node has is not known"
    return Finding(
        topic="memory",
        claim=f"{needs}; {has}.",
        numbers=host_numbers(memory),
        suggestion="" if is_known else "check free -g on a node",
    )
