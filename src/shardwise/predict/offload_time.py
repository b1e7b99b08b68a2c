"""What a step waits for when states or activations live in host memory or on drives."""

from dataclasses import dataclass

from shardwise.cluster import Cluster
from shardwise.formulas.offload_time import cpu_adam_s, host_transfer_s, nvme_step_s
from shardwise.predict.compute import PhaseTimes
from shardwise.step.activation_tensors import kept_per_run, resident
from shardwise.step.stage_context import StageContext
from shardwise.step.step_operations import trained_elements
from shardwise.units import BytesPerSecond, Seconds

HOST_ADAM_BYTES_PER_S: BytesPerSecond = 100e9
"""Memory bandwidth CPU Adam reaches on one host. Low confidence: 117e9 follows from 2.57 s for 10B parameters on a
two-socket host (ZeRO-Offload, arXiv:2101.06840, CPU-Adam table), 54e9 from about 10 s for a quarter of 72B per node
(deepspeedai/DeepSpeed#6834)."""
HOST_LINK_FRACTION = 0.85
"""Host copies reach 55.4 of 63 GB/s on PCIe 5 and 359 of 450 on NVLink-C2C (nvbandwidth)."""
NVME_READ_BYTES_PER_S: BytesPerSecond = 2.9e9
NVME_WRITE_BYTES_PER_S: BytesPerSecond = 2.04e9
"""One drive (stas00/ml-engineering, storage: fio on a Samsung 980 PRO)."""
ASSUMED_DRIVES_PER_NODE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTime:
    """Seconds per step a rank waits for its host."""

    copies_s: Seconds
    """Exposed copies of parameters, gradients and activations."""
    update_s: Seconds
    """The optimizer on the host's processors, and its drives."""

    @property
    def total_s(self) -> Seconds:
        """Everything."""
        return self.copies_s + self.update_s


def offload_time(context: StageContext, compute: PhaseTimes) -> OffloadTime:
    """Waiting of one stage's rank: zero when nothing is offloaded.

    Gradients leave while backward runs, activations while forward runs and come back under backward, parameters are
    streamed under both; the update and the way back of the weights hide under nothing (DeepSpeed without delayed
    parameter update).
    """
    plan, states = context.plan, context.states
    offload = plan.recipe.offload
    link = plan.cluster.gpu.pcie_bandwidth_bytes_per_s * HOST_LINK_FRACTION
    forward_copies = backward_copies = after_copies = 0.0
    update_s = 0.0
    if plan.recipe.activation_offload:
        totals = sum(kept_per_run(context))
        moved = (totals - resident(context, totals)) * plan.num_microbatches
        forward_copies += moved
        backward_copies += moved
    if offload != "none":
        shard = trained_elements(context).shard
        backward_copies += shard * states.gradient_bytes
        update_s = _update_s(shard, plan.cluster, on_drives=offload == "nvme")
        if offload == "optimizer":
            after_copies += shard * states.weight_bytes
        else:
            streamed = shard * states.compute_bytes * plan.num_microbatches
            forward_copies += streamed
            backward_copies += streamed
    busy_s = compute.backward_s + compute.recompute_s
    copies_s = (
        max(0.0, host_transfer_s(num_bytes=forward_copies, link_bandwidth_bytes_per_s=link) - compute.forward_s)
        + max(0.0, host_transfer_s(num_bytes=backward_copies, link_bandwidth_bytes_per_s=link) - busy_s)
        + host_transfer_s(num_bytes=after_copies, link_bandwidth_bytes_per_s=link)
    )
    return OffloadTime(copies_s=copies_s, update_s=update_s)


def _update_s(shard: int, cluster: Cluster, *, on_drives: bool) -> Seconds:
    """All ranks of a node share its memory bandwidth and its drives."""
    on_node = shard * cluster.node.gpus_per_node
    host_s = cpu_adam_s(num_params=on_node, host_bandwidth_bytes_per_s=HOST_ADAM_BYTES_PER_S)
    if not on_drives:
        return host_s
    drives_s = nvme_step_s(
        num_params=on_node,
        read_bytes_per_s=NVME_READ_BYTES_PER_S * ASSUMED_DRIVES_PER_NODE,
        write_bytes_per_s=NVME_WRITE_BYTES_PER_S * ASSUMED_DRIVES_PER_NODE,
    )
    return max(host_s, drives_s)
