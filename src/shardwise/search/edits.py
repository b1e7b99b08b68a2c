"""The one ladder of edits, smallest first: one flag, another layout, another way to train, other hardware, adapters.

An edit only proposes. Of a plan, :mod:`shardwise.explain.changes` predicts the edited plan; of a question, whose layout
is open, :mod:`shardwise.search.closest` searches the edited question. Both put what helps in the order of
:func:`worth`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

from shardwise.cluster import Cluster
from shardwise.engines.table import ENGINES
from shardwise.plan import Plan
from shardwise.prediction import MemoryPrediction
from shardwise.recipe import Recompute
from shardwise.rules import Changes
from shardwise.rules.changes import merge
from shardwise.rules.defaults import type_changes
from shardwise.rules.degrees import divisors
from shardwise.rules.refusal import Value
from shardwise.schedules.table import CHUNKED_SCHEDULE, DEFAULT_SCHEDULE, SCHEDULE_KINDS
from shardwise.search.clusters import bigger_gpus, size_change, with_gpu, with_host_memory
from shardwise.search.narrow_states import narrow_states
from shardwise.units import GIB, Seconds, format_gib

__all__ = [
    "FLAG",
    "HARDWARE",
    "LAYOUT",
    "TRAINING",
    "Edit",
    "divided_norms",
    "edit",
    "faster_edits",
    "fewer_ranks",
    "fused_attention",
    "grown",
    "host_edits",
    "larger_micro_batch",
    "question_edits",
    "recompute",
    "slow_switches",
    "smaller_edits",
    "usual_schedule",
    "without_activation_offload",
    "without_offload",
    "worth",
]

FLAG, LAYOUT, TRAINING, HARDWARE = 0, 1, 2, 3
"""Effort of a change: a flag, a different layout, a different way to train, other or more hardware."""
LOSS_CHUNKS = 8
"""Pieces of the loss that are proposed where it is computed in one."""
FUSED_ATTENTION: Changes = (("attention", "flash"), ("attention_kernel", None))
"""The engine's fused kernel in place of written-out scores."""
ADAPTERS = {
    "lora": "trains adapters, not the model",
    "qlora": "trains adapters on weights of 4 bits: check the loss",
}
MOVES = {
    "optimizer": "the update runs on the host",
    "parameters": "weights cross PCIe as well",
    "nvme": "the update waits for the drives",
}
NARROW = {
    "optimizer": "moments in 8 bits",
    "precision": "weights in bf16 alone",
    "adapter": "a base of 4 bits",
}
"""What states of fewer bytes cost, by the field that is changed."""
HOST_SIZES_GIB = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
"""GiB of host memory that servers are sold with."""
MORE_GPUS_FACTOR = 3
"""More GPUs stand before another way to train where they take less than a third of its GPU-seconds."""

DIVIDED_FURTHER: dict[str, Changes] = {"tp": (("sequence_parallel", True),), "pp": (("stage_layers", None),)}
"""Changes that go with a larger degree."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """Changes that a person types into a plan's file, with the plan that the file then describes."""

    changes: Changes
    """Fields of the layout and the recipe, or of the cluster's description where it is other hardware."""
    cost: str
    effort: int
    plan: Plan


def edit(plan: Plan, cost: str, effort: int, changes: Changes = (), *, following: Changes = (), **named: Value) -> Edit:
    """An edit by changes or fields by name; ``following`` are fields that depend on them, see :func:`type_changes`."""
    typed, edited = type_changes(plan, (*changes, *named.items()), following)
    return Edit(changes=typed, cost=cost, effort=effort, plan=edited)


def worth(plan: Plan, *, asked: Plan, effort: int, step_s: Seconds) -> tuple[bool, bool, int, float]:
    """A key by which what is tried first comes first: flags, another layout, then what trains as was asked on such GPUs
    by its GPU-seconds a token, other hardware, and adapters at last.

    GPU-seconds of GPUs that nobody said are there count more.
    """
    cluster, now = plan.cluster, asked.cluster
    has_more = cluster.gpu == now.gpu and cluster.num_gpus > now.num_gpus
    price = (MORE_GPUS_FACTOR if has_more else 1) * step_s * cluster.num_gpus / plan.tokens_per_step
    adapts = (plan.recipe.adapter == "none") != (asked.recipe.adapter == "none")
    if effort == HARDWARE and not has_more:  # the nearest is proposed first
        return adapts, True, TRAINING, 0.0
    return adapts, False, min(effort, TRAINING), price


def smaller_edits(plan: Plan) -> Iterator[Edit]:
    """Edits on the same hardware that hold less on the device, by effort and then by how little they cost."""
    yield from _kernel_edits(plan)
    yield from _flag_edits(plan)
    yield from _sharding_edits(plan)
    yield from _degree_edits(plan)
    yield from _state_edits(plan)
    yield from _moving_edits(plan)


def question_edits(plan: Plan, memory: MemoryPrediction) -> Iterator[Edit]:
    """Edits of a question, whose layout, micro-batch and recomputation a search tries by itself."""
    yield from _kernel_edits(plan)
    yield from _state_edits(plan)
    yield from _moving_edits(plan)
    yield from hardware_edits(plan, memory)


def hardware_edits(plan: Plan, memory: MemoryPrediction) -> Iterator[Edit]:
    """As many GPUs with more memory, and roomier hosts where those lack some."""
    for gpu in bigger_gpus(plan.cluster.gpu):
        yield from _on(plan, with_gpu(plan.cluster, gpu), f"other GPUs of {format_gib(gpu.memory_bytes)}", gpu=gpu.id)
    if memory.fits_host:
        return
    enough = next((size for size in HOST_SIZES_GIB if size * GIB >= memory.host_bytes_per_node), None)
    if enough is not None:
        yield from _on(
            plan, with_host_memory(plan.cluster, enough), "roomier hosts, in the cluster's file", host_memory_gib=enough
        )


def grown(plan: Plan, cluster: Cluster) -> Iterator[Edit]:
    """The edit to more GPUs with an unchanged layout: more shards of the states, and a part of the batch for every
    rank; then with parameters divided as well. None where the GPUs are no multiple of what a shard group takes.
    """
    layout, recipe = plan.layout, plan.recipe
    shards, rest = divmod(layout.dp_shard * cluster.num_gpus, plan.cluster.num_gpus)
    if rest:
        return
    least = max(1, layout.zero_stage) if layout.state_shard_size == 1 else layout.zero_stage
    step = recipe.micro_batch_size * layout.dp_replicate * shards
    size = max(1, ceil(plan.global_batch_size / step)) * step
    for stage in dict.fromkeys((least, 3)):
        wanted: Changes = (("dp_shard", shards), ("zero_stage", stage), ("global_batch_size", size))
        changes, larger = type_changes(replace(plan, cluster=cluster), wanted)
        typed = merge(size_change(cluster, asked=plan.cluster), changes)
        yield Edit(changes=typed, cost=f"{cluster.num_gpus:,} GPUs", effort=HARDWARE, plan=larger)


def _on(plan: Plan, cluster: Cluster | None, cost: str, **typed: Value) -> Iterator[Edit]:
    """The edit to other hardware, where somebody can describe it."""
    if cluster is not None:
        yield Edit(changes=tuple(typed.items()), cost=cost, effort=HARDWARE, plan=replace(plan, cluster=cluster))


def host_edits(plan: Plan) -> Iterator[Edit]:
    """Edits that hold less on the host: less is offloaded, or it goes to drives."""
    recipe = plan.recipe
    if recipe.activation_offload:
        yield without_activation_offload(plan)
    if recipe.offload == "none":
        return
    yield without_offload(plan)
    if recipe.offload == "parameters":
        yield edit(plan, "weights stay on the GPU", FLAG, offload="optimizer")
    if recipe.offload != "nvme":
        yield edit(plan, MOVES["nvme"], TRAINING, offload="nvme")


def faster_edits(plan: Plan) -> Iterator[Edit]:
    """Edits that use spare memory, or spare a cost, to make the step shorter."""
    recipe, layout = plan.recipe, plan.layout
    if recipe.offload != "none":
        yield without_offload(plan)
    if recipe.writes_scores:
        yield fused_attention(plan)
    yield from slow_switches(plan)
    if recipe.recompute == "full":
        yield recompute(plan, "selective", "more activations are kept")
    if recipe.recompute != "none":
        yield recompute(plan, "none", "all activations are kept")
    for times in (2, 4):
        yield larger_micro_batch(plan, times)
    if layout.zero_stage == 3 and layout.reshard_after_forward and layout.state_shard_size > 1:
        yield edit(plan, "gathered weights stay until backward", FLAG, reshard_after_forward=False)
    yield from _faster_layouts(plan)
    if recipe.precision == "fp32":
        yield edit(plan, "16-bit matrix products: check the loss", TRAINING, precision="bf16-mixed")
    if recipe.precision in ("bf16-mixed", "fp16-mixed") and plan.cluster.gpu.peak_flop_per_s("fp8") > 0:
        yield edit(plan, "8-bit matrix products: check the loss", TRAINING, precision="fp8-mixed")


def slow_switches(plan: Plan) -> Iterator[Edit]:
    """The edits of switches that make the same step slower: each is turned to the fast side."""
    recipe, engine = plan.recipe, ENGINES[plan.engine]
    if recipe.blocking_launches:
        yield edit(plan, "errors name a later line", FLAG, blocking_launches=False)
    if not recipe.compile and engine.has_compile_switch:
        yield edit(plan, "compile time at start", FLAG, compile=True)
    may_be_off = recipe.overlap_grad_reduce is None and engine.has_overlap_switch
    if recipe.overlap_grad_reduce is False or may_be_off:
        yield edit(plan, "buckets under backward", FLAG, overlap_grad_reduce=True)


def divided_norms(plan: Plan) -> Edit:
    """The edit to sequence parallelism beside tensor parallelism."""
    return edit(plan, "none: the same bytes move", FLAG, sequence_parallel=True)


def fused_attention(plan: Plan) -> Edit:
    """The edit to the engine's fused kernel in place of written-out scores."""
    return edit(plan, "none: same result, faster", FLAG, FUSED_ATTENTION)


def recompute(plan: Plan, what: Recompute, cost: str) -> Edit:
    """The edit to recomputation of every block alike."""
    return edit(plan, cost, FLAG, recompute=what, recompute_layers=None, recompute_modules=None)


def larger_micro_batch(plan: Plan, times: int) -> Edit:
    """The edit to so many times the sequences in a micro-batch."""
    size = plan.recipe.micro_batch_size * times
    return edit(plan, f"{times}x the activations", FLAG, micro_batch_size=size)


def without_offload(plan: Plan) -> Edit:
    """The edit that leaves model states on the GPU."""
    return edit(plan, "states stay on the GPU", FLAG, offload="none")


def without_activation_offload(plan: Plan) -> Edit:
    """The edit that leaves saved activations on the GPU."""
    return edit(plan, "activations stay on the GPU", FLAG, activation_offload=False)


def usual_schedule(plan: Plan) -> Edit:
    """The edit of a pipeline to 1F1B, whose bubble is GPipe's and longer than that of chunks or split backwards."""
    layout = plan.layout
    is_gpipe = layout.vpp == 1 and SCHEDULE_KINDS[layout.schedule].runs_forwards_first
    cost = "none: the same bubble" if is_gpipe else "a longer bubble"
    return edit(plan, cost, LAYOUT, vpp=1, schedule=DEFAULT_SCHEDULE)


def fewer_ranks(plan: Plan, axis: str, degree: int, **changes: Value) -> Edit:
    """The edit to a smaller degree of an axis, whose other ranks join the shard group.

    States are then divided at least as the engine divides them by default. What the smaller degree leaves no place for
    goes with it: sequence parallelism and the ranks inside an expert with tp, uneven stages and chunks with pp.
    """
    layout = plan.layout
    before: int = getattr(layout, axis)
    divided = {axis: degree, "dp_shard": layout.dp_shard * (before // degree)}
    following: Changes = (("zero_stage", layout.zero_stage or ENGINES[plan.engine].default_zero_stage),)
    if axis == "tp":
        keeps = layout.sequence_parallel and degree > 1
        following += (("sequence_parallel", keeps), ("expert_tp", min(layout.expert_tp, degree)))
    if axis == "pp":
        following += (("stage_layers", None),)
        following += (("vpp", 1), ("schedule", DEFAULT_SCHEDULE)) if degree == 1 else ()
    return edit(plan, "more of the model on each GPU", LAYOUT, tuple((divided | changes).items()), following=following)


def _kernel_edits(plan: Plan) -> Iterator[Edit]:
    if plan.recipe.writes_scores:
        yield fused_attention(plan)
    if plan.recipe.loss_chunks == 1 and plan.model.has_head:
        yield edit(plan, "a few launches", FLAG, loss_chunks=LOSS_CHUNKS)


def _flag_edits(plan: Plan) -> Iterator[Edit]:
    recipe, layout = plan.recipe, plan.layout
    for name in ("load_state_dict", "save_state_dict"):  # an edit to what is there changes nothing, and is not tried
        yield edit(plan, "none: each rank's own part", FLAG, ((name, "sharded"),))
    if layout.tp > 1 and not layout.sequence_parallel:
        yield divided_norms(plan)
    if not layout.reshard_after_forward and layout.zero_stage == 3:
        yield edit(plan, "weights are gathered again for backward", FLAG, reshard_after_forward=True)
    if recipe.recompute == "none":
        yield recompute(plan, "selective", "a part of each block is computed again")
    if recipe.recompute != "full" or recipe.recompute_layers is not None:
        yield recompute(plan, "full", "about a third more compute")
    for smaller in sorted({recipe.micro_batch_size // 2, 1}, reverse=True):
        if 1 <= smaller < recipe.micro_batch_size:
            yield edit(plan, "smaller matrix products", FLAG, micro_batch_size=smaller)


def _sharding_edits(plan: Plan) -> Iterator[Edit]:
    layout, size = plan.layout, plan.layout.data_parallel_size
    costs = {1: "almost none", 2: "almost none", 3: "weights are gathered for every forward and backward"}
    for stage, cost in costs.items():
        if layout.state_shard_size > 1 and stage > layout.zero_stage:
            yield edit(plan, cost, LAYOUT, zero_stage=stage)
        if layout.state_shard_size == 1 and size > 1:
            yield edit(plan, cost, LAYOUT, zero_stage=stage, dp_replicate=1, dp_shard=size)
    if layout.dp_replicate > 1 and layout.zero_stage > 0:
        yield edit(plan, "gathers cross the node boundary", LAYOUT, dp_replicate=1, dp_shard=size)


def _degree_edits(plan: Plan) -> Iterator[Edit]:
    """Two, four or eight times a degree of model parallelism, taken from the data-parallel ranks, and every larger
    degree of expert parallelism, which divides experts over these ranks."""
    costs = {
        "tp": "two exchanges of activations per layer and direction",
        "cp": "keys and values travel between ranks",
        "pp": "idle stages at the start and end of each step",
    }
    layout = plan.layout
    for axis, cost in costs.items():
        for times in (2, 4, 8):
            donor = next((name for name in ("dp_replicate", "dp_shard") if getattr(layout, name) % times == 0), None)
            if donor is not None:
                divided = {axis: getattr(layout, axis) * times, donor: getattr(layout, donor) // times}
                following = DIVIDED_FURTHER.get(axis, ())
                yield edit(plan, cost, LAYOUT, tuple(divided.items()), following=following)
    for ep in divisors(plan.model.moe.num_experts) if plan.model.moe else ():
        if layout.ep < ep <= layout.data_parallel_size * layout.cp * layout.tp:
            yield edit(plan, "tokens travel to the ranks that hold their experts", LAYOUT, ep=ep)
    if layout.vpp > 1 or (layout.pp > 1 and layout.schedule != DEFAULT_SCHEDULE):
        yield usual_schedule(plan)


def _state_edits(plan: Plan) -> Iterator[Edit]:
    """States of fewer bytes, then fewer of them: adapters, which train something else."""
    recipe = plan.recipe
    if recipe.precision == "fp32":
        yield edit(plan, "bf16 matrix products", TRAINING, precision="bf16-mixed")
    for changes in narrow_states(plan):
        said = ", ".join(NARROW[name] for name, _ in changes)
        yield edit(plan, f"{said}: check the loss", TRAINING, changes)
    for adapter, cost in ADAPTERS.items():
        if recipe.adapter == "none" and adapter in ENGINES[plan.engine].adapters:
            yield edit(plan, cost, TRAINING, adapter=adapter)


def _moving_edits(plan: Plan) -> Iterator[Edit]:
    """What moves to the host."""
    recipe = plan.recipe
    if not recipe.activation_offload:
        yield edit(plan, "activations cross PCIe twice", TRAINING, activation_offload=True)
    for offload, cost in MOVES.items():
        if recipe.offload == "none" and offload in ENGINES[plan.engine].offloads:
            yield edit(plan, cost, TRAINING, offload=offload)


def _faster_layouts(plan: Plan) -> Iterator[Edit]:
    layout = plan.layout
    for axis in ("tp", "pp", "cp"):
        degree: int = getattr(layout, axis)
        if degree > 1 and degree % 2 == 0:
            yield fewer_ranks(plan, axis, degree // 2)
    if layout.pp > 1 and layout.vpp == 1 and layout.schedule == DEFAULT_SCHEDULE:
        cost = "more micro-batches in flight, twice the sends"
        yield edit(plan, cost, LAYOUT, schedule=CHUNKED_SCHEDULE, vpp=2)
    yield from _replicating_layouts(plan)


def _replicating_layouts(plan: Plan) -> Iterator[Edit]:
    """HSDP inside a node, and lower ZeRO stages."""
    layout, per_node = plan.layout, plan.cluster.node.gpus_per_node
    inside = per_node // (layout.tp * layout.cp) if per_node % (layout.tp * layout.cp) == 0 else 0
    if 1 < inside < layout.dp_shard and layout.dp_shard % inside == 0:
        copies = layout.dp_replicate * layout.dp_shard // inside
        yield edit(plan, "states divided by the node only", LAYOUT, dp_replicate=copies, dp_shard=inside)
    cost = "more states on each GPU"
    for stage in range(layout.zero_stage - 1, 0, -1):
        yield edit(plan, cost, LAYOUT, zero_stage=stage)
    if layout.zero_stage > 0:
        yield edit(plan, cost, LAYOUT, zero_stage=0, dp_replicate=layout.data_parallel_size, dp_shard=1)
