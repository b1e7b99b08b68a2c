"""Findings that name what fills the device: components, largest tensors, the peak's moment, headroom and band."""

from dataclasses import dataclass

from shardwise.explain.host import CHANGES_BELOW, host_finding, host_numbers, host_shortage
from shardwise.explain.records import Finding
from shardwise.explain.state_counts import state_bytes_of
from shardwise.explain.told import told
from shardwise.ledger import MemoryComponent
from shardwise.plan import Plan
from shardwise.predict.memory import most_bytes
from shardwise.prediction import MemoryPrediction
from shardwise.units import format_gib, format_percent

__all__ = ["COMPONENT_MEANINGS", "memory_findings"]

LARGEST_TENSORS = 5
UNEVEN_STAGES_FRACTION = 0.10
PARTIAL_FRACTION = 0.5
"""Gradients at the peak over the most there are, below which somebody who adds up states misses them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentMeaning:
    """A component in words, what it grows with, and what makes it smaller."""

    words: str
    grows_with: str
    shrink: str


COMPONENT_MEANINGS: dict[MemoryComponent, ComponentMeaning] = {
    "parameters": ComponentMeaning(
        words="the rank's own weights",
        grows_with="the number of parameters; more tokens do not change it",
        shrink="divide it: tp, pp, or zero_stage=3 with a larger dp_shard",
    ),
    "gradients": ComponentMeaning(
        words="gradients",
        grows_with="the number of trained parameters",
        shrink="divide it: zero_stage=2 or 3, tp or pp",
    ),
    "optimizer": ComponentMeaning(
        words="optimizer states and fp32 master weights",
        grows_with="the number of trained parameters",
        shrink="divide it (zero_stage>=1 with a larger dp_shard), or use an 8-bit optimizer, or offload it",
    ),
    "activations": ComponentMeaning(
        words="tensors saved for backward",
        grows_with="micro_batch_size x seq_len, the layers of a stage and the micro-batches in flight",
        shrink="recompute, a smaller micro_batch_size, tp with sequence_parallel, or cp",
    ),
    "logits": ComponentMeaning(
        words="logits and cross-entropy",
        grows_with="micro_batch_size x seq_len x vocab_size",
        shrink="compute the loss in chunks (loss_chunks), fuse it, or divide the vocabulary over tp",
    ),
    "gathered_parameters": ComponentMeaning(
        words="16-bit copies of weights, and weights gathered from other ranks while they are used",
        grows_with="the weights of which a copy is kept, or the largest unit that is gathered at once",
        shrink="smaller units, tp, or reshard_after_forward",
    ),
    "communication_buffers": ComponentMeaning(
        words="buckets, reduce-scatter inputs and NCCL buffers",
        grows_with="the largest unit and the number of communicators",
        shrink="smaller buckets or units, fewer axes of parallelism",
    ),
    "temporaries": ComponentMeaning(
        words="workspaces and gradients of the block being run",
        grows_with="micro_batch_size x seq_len and the widest layer",
        shrink="a smaller micro_batch_size, tp, a fused optimizer",
    ),
    "framework": ComponentMeaning(
        words="device context, libraries and allocator slack",
        grows_with="the framework and its settings, not the model",
        shrink="expandable_segments:True against fragmentation; the context itself cannot be avoided",
    ),
}


def memory_findings(plan: Plan, memory: MemoryPrediction) -> tuple[Finding, ...]:
    """Headroom first, then what dominates, the largest tensors, the moment of the peak, uneven stages and the host."""
    found = [_headroom(memory), _dominant(plan, memory), _largest_tensors(memory), _peak_moment(memory)]
    found += [_stages(memory), host_finding(memory)]
    return tuple(finding for finding in found if finding is not None)


def _headroom(memory: MemoryPrediction) -> Finding:
    needed, capacity = memory.needed_bytes, memory.capacity_bytes
    low, high = needed * memory.low_fraction, needed * memory.high_fraction
    numbers = (
        told("needed", memory, "memory.needed_bytes", "bytes"),
        told("low", memory, "memory.needed_bytes x memory.low_fraction", "bytes"),
        told("high", memory, "memory.needed_bytes x memory.high_fraction", "bytes"),
        told("capacity", memory, "memory.capacity_bytes", "bytes"),
        told("spare", memory, "memory.spare_bytes", "bytes"),
        told("missing", memory, "memory.missing_bytes", "bytes"),
        told("device used with cached blocks", memory, "memory.device_used_bytes", "bytes"),
    )
    band = f"the band from measured runs is {format_gib(low)} to {format_gib(high)}"
    need = f"{format_gib(needed)} of {format_gib(capacity)}"
    if not memory.fits_host:
        return Finding(
            topic="headroom",
            claim=f"It does not fit: {host_shortage(memory)}; {_device_beside(memory, need)}.",
            numbers=(*numbers, *host_numbers(memory)),
            because=f"{band} on the GPU; what is offloaded has to stay on the hosts for the whole run",
            suggestion=CHANGES_BELOW,
        )
    if memory.is_device_borderline:
        is_held = memory.fits_device
        claim = "It is at the edge" if is_held else f"It does not fit, by {format_gib(memory.missing_bytes)}"
        return Finding(
            topic="headroom",
            claim=f"{claim}: {need} are needed, and the band of the prediction "
            f"{'reaches beyond' if is_held else 'begins inside'} the device.",
            numbers=numbers,
            because=band,
            suggestion=f"gain {format_gib(high - capacity)} before relying on it; the changes below say how",
        )
    if memory.is_host_borderline:
        host = f"{format_gib(memory.host_bytes_per_node)} of {format_gib(memory.host_capacity_bytes)}"
        return Finding(
            topic="headroom",
            claim=f"It is at the edge: {host} of host memory are needed on each node, beside the system and the "
            "processes.",
            numbers=(*numbers, *host_numbers(memory)),
            because=f"{band} on the GPU; the same share is asked to be free on the host",
            suggestion=f"look at free -g on a node, or {CHANGES_BELOW}",
        )
    if memory.fits_device:
        claim = f"It fits with {format_gib(memory.spare_bytes)} to spare: {need} are needed on the fullest GPU."
        return Finding(topic="headroom", claim=claim, numbers=numbers, because=band)
    return Finding(
        topic="headroom",
        claim=f"It does not fit: {format_gib(memory.missing_bytes)} are missing, {need} would be needed.",
        numbers=numbers,
        because=f"{band}, all of it above the capacity",
        suggestion=CHANGES_BELOW,
    )


def _device_beside(memory: MemoryPrediction, need: str) -> str:
    """A sentence on the device's memory when the host is short."""
    if not memory.fits_device:
        return f"the fullest GPU lacks {format_gib(memory.missing_bytes)} as well, {need}"
    if memory.is_device_borderline:
        return f"the fullest GPU is borderline, {need}"
    return f"the fullest GPU would have {format_gib(memory.spare_bytes)} to spare, {need}"


def _dominant(plan: Plan, memory: MemoryPrediction) -> Finding:
    """The component that a GPU needs most of; blocks that the allocator keeps and gives back are no need."""
    worst = memory.worst
    cached = {"framework": worst.device_used_bytes - worst.needed_bytes}
    ranked = sorted(worst.components, key=lambda entry: cached.get(entry.component, 0) - entry.num_bytes)
    top, states = ranked[0], state_bytes_of(worst)
    meaning = COMPONENT_MEANINGS[top.component]
    held, used = top.num_bytes - cached.get(top.component, 0), max(1, worst.needed_bytes)
    claim = (
        f"Largest component: {top.component} ({meaning.words}), {format_gib(held)} or "
        f"{format_percent(held / used)} of what the fullest GPU needs; the model states held then are "
        f"{format_gib(states)} ({format_percent(states / used)}){_partial_gradients(plan, memory)}."
    )
    layout = plan.layout
    divided = f"dp_shard x cp = {layout.state_shard_size}, tp = {layout.tp}, pp = {layout.pp}"
    return Finding(
        topic="memory",
        claim=claim,
        numbers=tuple(
            told(entry.component, memory, f"memory.components_bytes.{entry.component}", "bytes")
            for entry in ranked
            if entry.num_bytes
        ),
        because=f"{top.component} grows with {meaning.grows_with}; states are divided by {divided} as "
        f"zero_stage={layout.zero_stage} says",
        suggestion=meaning.shrink,
    )


def _partial_gradients(plan: Plan, memory: MemoryPrediction) -> str:
    """A sentence that the peak is at a moment without most gradients; empty where they are counted."""
    worst = memory.worst
    held = worst.component_bytes("gradients")
    if plan.recipe.convention == "seed" or held > PARTIAL_FRACTION * most_bytes(plan, "gradients"):
        return ""
    return f"; most gradients exist at another moment than the peak, {worst.peak_moment}"


def _largest_tensors(memory: MemoryPrediction) -> Finding | None:
    tensors = memory.worst.largest_tensors[:LARGEST_TENSORS]
    if not tensors:
        return None
    name, num_bytes = tensors[0]
    place = f"memory.stages.{memory.stages.index(memory.worst)}.largest_tensors"
    return Finding(
        topic="memory",
        claim=f"The largest entry alive at the peak is {name}: {format_gib(num_bytes)}.",
        numbers=tuple(
            told(name, memory, f"{place}.{number}.bytes", "bytes") for number, (name, _) in enumerate(tensors)
        ),
        because="blocks[i] are the stage's i-th run of equal transformer blocks, all of them together; what is kept is "
        "kept from forward to backward",
    )


def _peak_moment(memory: MemoryPrediction) -> Finding:
    worst = memory.worst
    ordered = sorted(worst.phases, key=lambda phase: -phase.allocated_bytes)
    second = (
        f"; the next highest is {ordered[1].phase} with {format_gib(ordered[1].allocated_bytes)}"
        if len(ordered) > 1
        else ""
    )
    return Finding(
        topic="memory",
        claim=f"The peak is in the {worst.peak_phase} phase ({worst.peak_moment}): "
        f"{format_gib(worst.peak_allocated_bytes)} in tensors{second}.",
        numbers=(
            told("allocated", memory, "memory.peak_allocated_bytes", "bytes"),
            told("reserved", memory, "memory.peak_reserved_bytes", "bytes"),
            told("device used", memory, "memory.device_used_bytes", "bytes"),
        ),
        because="allocated is what tensors hold, reserved what the allocator keeps (cached blocks included, given back "
        "before an allocation fails), device used what nvidia-smi shows",
    )


def _stages(memory: MemoryPrediction) -> Finding | None:
    if len(memory.stages) == 1:
        return None
    worst = memory.worst
    least = min(memory.stages, key=lambda stage: stage.needed_bytes)
    spread = worst.needed_bytes - least.needed_bytes
    if spread < UNEVEN_STAGES_FRACTION * worst.needed_bytes:
        return None
    return Finding(
        topic="memory",
        claim=f"Stage {worst.stage} needs {format_gib(spread)} more than stage {least.stage}: an average over stages "
        "would hide it.",
        numbers=tuple(
            told(f"stage {stage.stage}", memory, f"memory.stages.{number}.needed_bytes", "bytes")
            for number, stage in enumerate(memory.stages)
        ),
        because=f"stage {worst.stage} holds {worst.layers} layers with {worst.in_flight_micro_batches:g} micro-batches "
        f"in flight, stage {least.stage} {least.layers} with {least.in_flight_micro_batches:g}; embedding, head and "
        "loss sit on the first and last stage",
        suggestion="move layers away from the full stage (stage_layers), or choose a schedule with fewer micro-batches "
        "in flight",
    )
