"""Time a step waits for copies and updates when states or activations live in host memory or on drives."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.cluster import Cluster, Node
from shardwise.columns import negated
from shardwise.engines.table import ENGINES
from shardwise.formulas.offload_time import cpu_adam_s, host_transfer_s, nvme_step_s
from shardwise.predict.pass_time import pass_time
from shardwise.predict.passes import Piece
from shardwise.predict.stage_passes import plain_runs
from shardwise.predict.stage_work import StageWork
from shardwise.simulate.engine import Task
from shardwise.step.stage_activations import kept_per_run, resident
from shardwise.step.stage_context import StageContext
from shardwise.step.state_tensors import frozen_parameters
from shardwise.step.step_operations import trained_elements, update_bytes
from shardwise.units import GB, BytesPerSecond, Seconds

HOST_MEMORY_BYTES_PER_S: tuple[tuple[BytesPerSecond, BytesPerSecond], ...] = (
    (16e9, 2 * 6 * 21.3e9),
    (32e9, 2 * 8 * 25.6e9),
    (64e9, 2 * 8 * 38.4e9),
)
"""Peak memory bandwidth of a host by the rate of its GPUs' links, which come with a generation of CPUs: PCIe 3 with two
sockets of six channels of DDR4-2666 (DGX-2), PCIe 4 with two of eight of DDR4-3200 (DGX A100), PCIe 5 with two of eight
of DDR5-4800 (DGX H100 and what came after it)."""
GRACE_MEMORY_BYTES_PER_S: BytesPerSecond = 512e9
"""LPDDR5X of one Grace CPU: up to 512 GB/s in NVIDIA's GH200 datasheet, whose edition is not known; the figure was
entered on 2026-11-30. GB200 and GB300 are assumed to have the same."""
GPUS_PER_GRACE = 2
"""GPUs that share one Grace CPU in a tray of GB200, which has 4 GPUs and 2 CPUs (``gb200-nvl72-tray`` in ``nodes.csv``,
2026-11). GB300 is assumed to share alike. A GH200 has one to itself, which the servers of one GPU here get."""
HOST_ADAM_FRACTION = 0.25
"""Share of that peak that CPU Adam reaches. Chosen on Megatron's optimizer offload on two H100 servers: 3.2 s more a
step for 15.3 billion parameters a host, less 0.4 s of copies, are 153 GB/s of 614 at 28 bytes each (Qwen3-30B-A3B,
NVIDIA-NeMo/Megatron-Bridge@067f987 ``skills/nemo-mbridge-perf-cpu-offloading/card.yaml``, 2026-03). Others lie on both
sides: 0.46 from 2.57 s for 10B parameters on a DGX-2 (ZeRO-Offload, arXiv:2101.06840, CPU-Adam table), 0.13 from about
10 s for a quarter of 72B on an A100 server (deepspeedai/DeepSpeed#6834)."""
HOST_GRADIENT_BYTES = 4
"""Most bytes of a gradient that the update reads on the host: its fp32 copy, whatever the device held beside it."""
HOST_COPIES_FRACTION = 0.5
"""Share of that peak that the copies of all GPUs of a node reach together in one direction, while the other direction
runs too. Low confidence: one direction shares the memory with the other and with the CPUs. Hosts that GPUs reach over
NVLink-C2C have memory of their own beside each."""
HOST_LINK_FRACTION = 0.85
"""Host copies reach 55.4 of 63 GB/s on PCIe 5 and 359 of 450 on NVLink-C2C (nvbandwidth)."""
GPUS_PER_UPLINK, SHARED_UPLINK_GPUS = 2, 8
"""NVLink servers of eight and more GPUs on PCIe 3 or 4 hang two of them behind each switch, which has one link to the
host: the pairs (PXB) of the 8 x A100-SXM4 in NVIDIA/nvbandwidth#53 (2025-11). One such GPU copies at 25 to 26 GB/s a
direction while the others rest (NVIDIA/nvbandwidth#11, 2023-11); with all of them at it, both directions at once, 5 to
6 are left for each. With PCIe 5 every GPU has a switch of its own (topology of an 8 x H100 SXM in NVIDIA/nccl#1264)."""
PCIE_5_BYTES_PER_S: BytesPerSecond = 60e9
"""Sixteen lanes of PCIe 5 have more than this one way, those of PCIe 4 less."""
NVME_READ_BYTES_PER_S: BytesPerSecond = 2.9e9
NVME_WRITE_BYTES_PER_S: BytesPerSecond = 2.04e9
"""One drive (stas00/ml-engineering, storage: fio on a Samsung 980 PRO)."""
ASSUMED_DRIVES_PER_NODE = 4
TO_DEVICE, TO_HOST = "to the device", "to the host"
"""The streams of copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTime:
    """Seconds per step a rank waits for its host."""

    copies_s: Seconds
    """Exposed copies of parameters, gradients and activations."""
    cpu_update_s: Seconds
    """Seconds of the optimizer on the host's CPUs."""
    drives_s: Seconds
    """Seconds in which its states are read from drives and written back, beside the CPUs."""

    @property
    def update_s(self) -> Seconds:
        """Seconds of the optimizer, which the slower of CPUs and drives decides."""
        return max(self.cpu_update_s, self.drives_s)

    @property
    def total_s(self) -> Seconds:
        """Seconds of copies and optimizer together."""
        return self.copies_s + self.update_s


NO_OFFLOAD = OffloadTime(copies_s=0.0, cpu_update_s=0.0, drives_s=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCopies:
    """Bytes that one rank exchanges with its host."""

    activation_bytes: float
    """Bytes to the host in the forward and back in the backward of every micro-batch."""
    parameter_bytes: float
    """Bytes to the device in every pass of every micro-batch."""
    gradient_bytes: float
    """Bytes to the host in the last backward."""
    weight_bytes: float
    """Bytes to the device after the update."""
    are_between: bool = False
    """Whether activations are copied on the stream that computes, between the blocks."""
    parameters_are_between: bool = False
    """Whether parameters are: FSDP2 over one rank copies a unit when it is needed, not ahead."""

    @property
    def beside_bytes(self) -> float:
        """Activations whose copies run on streams of their own."""
        return 0.0 if self.are_between else self.activation_bytes

    @property
    def between_bytes(self) -> float:
        """Activations and parameters whose copies computation waits for."""
        activations = self.activation_bytes if self.are_between else 0.0
        return activations + self.parameter_bytes * self.parameters_are_between

    @property
    def ahead_bytes(self) -> float:
        """Parameters that come while the block before them computes."""
        return self.parameter_bytes * negated(self.parameters_are_between)


def host_copies(context: StageContext) -> HostCopies:
    """Bytes copied to and from the host: activations, gradients, and weights, streamed or returned after the update.

    FSDP copies a parameter to the device as it is kept and casts it there; DeepSpeed keeps 16 bits on the host.

    Source: torch 2.13 ``distributed/fsdp/_fully_shard/_fsdp_param.py`` (``all_gather_inputs``) and
    ``_fsdp_param_group.py`` (``wait_for_unshard``).
    """
    offload, states = context.plan.recipe.offload, context.states
    activation_bytes = 0.0
    if context.plan.recipe.activation_offload:
        totals = sum(kept_per_run(context))
        activation_bytes = totals - resident(context, totals)
    shard = trained_elements(context).shard if offload != "none" else 0
    is_streamed, profile, layout = offload in ("parameters", "nvme"), context.profile, context.plan.layout
    parameter = states.weight_bytes if profile.is_torch else states.compute_bytes
    return HostCopies(
        activation_bytes=activation_bytes,
        parameter_bytes=shard * parameter + _frozen_bytes(context) if is_streamed else 0,
        gradient_bytes=shard * states.gradient_bytes,
        weight_bytes=shard * states.weight_bytes if offload == "optimizer" else 0,
        are_between=ENGINES[context.plan.engine].activation_copies == "between",
        parameters_are_between=(layout.pp == 1) & (layout.state_shard_size == 1) & (profile.sharding == "fsdp2"),
    )


def _frozen_bytes(context: StageContext) -> float:
    """Bytes of the weights beside adapters, which no optimizer updates but every pass reads."""
    return sum(frozen_parameters(context, unit) for unit in context.held_units)


def offload_time(context: StageContext, work: StageWork) -> OffloadTime:
    """Waiting of one stage's rank: zero when nothing is offloaded.

    Copies run on two streams, one a direction, beside the blocks they belong to: parameters and activations come back
    one block ahead, activations and gradients leave after their block. Where the engine copies activations between its
    blocks, they hide under nothing, and nor do the update and the way back of the weights (DeepSpeed without delayed
    parameter update).
    """
    plan = context.plan
    copies = host_copies(context)
    rounds = context.rounds
    between_s = 2 * rounds * copy_s(context, copies.between_bytes)
    returning_s = copy_s(context, copies.ahead_bytes + copies.beside_bytes)
    coming_s, leaving_s = copy_s(context, copies.ahead_bytes), copy_s(context, copies.beside_bytes)
    forward_s = _exposed_s(plain_runs(context, work, "forward"), work, coming_s, leaving_s)
    backward = plain_runs(context, work, "backward")
    last_s = _exposed_s(backward, work, returning_s, copy_s(context, copies.gradient_bytes))
    others_s = _exposed_s(backward, work, returning_s, 0.0) if rounds > 1 else 0.0
    shard = trained_elements(context).shard if plan.recipe.offload != "none" else 0
    return OffloadTime(
        copies_s=rounds * forward_s
        + (rounds - 1) * others_s
        + last_s
        + between_s
        + copy_s(context, copies.weight_bytes),
        cpu_update_s=_cpu_update_s(context, shard),
        drives_s=_drives_s(shard, plan.cluster) if plan.recipe.offload == "nvme" else 0.0,
    )


def copy_s(context: StageContext, num_bytes: float) -> Seconds:
    """Time of a copy to or from the host, which all GPUs of a node make at once."""
    rate = host_copy_bytes_per_s(context.plan.cluster.node)
    return host_transfer_s(num_bytes=num_bytes, link_bandwidth_bytes_per_s=rate)


def host_copy_bytes_per_s(node: Node) -> BytesPerSecond:
    """Bytes per second that one GPU copies to or from its host while all GPUs of the node do: the rate of its link, its
    part of a shared one, or its part of the host's memory."""
    link = node.gpu.pcie_bandwidth_bytes_per_s
    rate = link * HOST_LINK_FRACTION
    if node.gpu.has_coherent_host:
        return rate
    return min(rate / gpus_per_uplink(node), _copies_bytes_per_s(node) / node.gpus_per_node)


def _copies_bytes_per_s(node: Node) -> BytesPerSecond:
    """Bytes per second of host memory bandwidth for the copies of all GPUs of a node, in one direction."""
    return HOST_COPIES_FRACTION * host_memory_bytes_per_s(node)


def host_memory_bytes_per_s(node: Node) -> BytesPerSecond:
    """Peak bandwidth of the memory of one host, by the generation of CPUs that its GPUs' links belong to."""
    link = node.gpu.pcie_bandwidth_bytes_per_s
    if node.gpu.has_coherent_host:
        return GRACE_MEMORY_BYTES_PER_S * max(1, node.gpus_per_node // GPUS_PER_GRACE)
    known = [memory for rate, memory in HOST_MEMORY_BYTES_PER_S if link <= rate]
    return known[0] if known else HOST_MEMORY_BYTES_PER_S[-1][1]


def host_adam_bytes_per_s(node: Node) -> BytesPerSecond:
    """Bytes per second that CPU Adam moves on one host."""
    return HOST_ADAM_FRACTION * host_memory_bytes_per_s(node)


def gpus_per_uplink(node: Node) -> int:
    """GPUs behind one link to the host."""
    is_shared = node.scale_up.startswith("NVLink") and "bridge" not in node.scale_up
    is_narrow = node.gpu.pcie_bandwidth_bytes_per_s < PCIE_5_BYTES_PER_S
    return GPUS_PER_UPLINK if is_shared and is_narrow and node.gpus_per_node >= SHARED_UPLINK_GPUS else 1


def host_copy_sentence(node: Node) -> str:
    """A sentence with the rate assumed for copies between a GPU and its host, and its reason."""
    rate = f"copies between a GPU and its host reach {host_copy_bytes_per_s(node) / GB:.1f} GB/s a direction"
    if node.gpu.has_coherent_host:
        return f"{rate}, over a link of its own"
    if gpus_per_uplink(node) > 1:
        return f"{rate} while all GPUs copy: {GPUS_PER_UPLINK} GPUs share one PCIe link to the host"
    return (
        f"{rate} while all GPUs copy: over PCIe, and out of {_copies_bytes_per_s(node) / GB:.0f} GB/s that the host's "
        "memory is taken to have for them"
    )


def _exposed_s(runs: Sequence[Piece], work: StageWork, coming_s: Seconds, leaving_s: Seconds) -> Seconds:
    """Exposed seconds that copies add to a pass, divided evenly among its blocks."""
    if not coming_s and not leaving_s:
        return 0.0
    share = 1 / max(1, work.num_blocks)
    with_copies = [
        replace(
            piece,
            gathers=(_copy(TO_DEVICE, share * coming_s),),
            reductions=(_copy(TO_HOST, share * leaving_s),),
        )
        for piece in runs[1:-1]
    ]
    time = pass_time((runs[0], *with_copies, runs[-1]), is_throttled=True)
    return max(0.0, time.duration_s - time.line_s)


def _copy(direction: str, duration_s: Seconds) -> Task:
    """One copy as a task; copy engines take nothing from the multiprocessors, so it slows nothing."""
    return Task(name=f"copies {direction}", stream=direction, duration_s=duration_s, category="offload")


def host_update_s(context: StageContext, shard: int) -> Seconds:
    """The optimizer's step over a rank's shard on the host, in proportion to it."""
    host_s = _cpu_update_s(context, shard)
    on_drives = context.plan.recipe.offload == "nvme"
    return max(host_s, _drives_s(shard, context.plan.cluster)) if on_drives else host_s


def _cpu_update_s(context: StageContext, shard: int) -> Seconds:
    """Seconds of the update on the CPUs; all ranks of a node share its memory bandwidth."""
    node = context.plan.cluster.node
    states = context.states
    gradient_bytes = min(max(states.gradient_bytes, states.step_gradient_bytes), HOST_GRADIENT_BYTES)
    return cpu_adam_s(
        num_params=shard * node.gpus_per_node,
        host_bandwidth_bytes_per_s=host_adam_bytes_per_s(node),
        bytes_per_param=update_bytes(context, gradient_bytes=gradient_bytes),
    )


def _drives_s(shard: int, cluster: Cluster) -> Seconds:
    """Seconds of reading and writing states; all ranks of a node share its drives."""
    return nvme_step_s(
        num_params=shard * cluster.node.gpus_per_node,
        read_bytes_per_s=NVME_READ_BYTES_PER_S * ASSUMED_DRIVES_PER_NODE,
        write_bytes_per_s=NVME_WRITE_BYTES_PER_S * ASSUMED_DRIVES_PER_NODE,
    )
