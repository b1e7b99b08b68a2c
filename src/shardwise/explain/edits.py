"""The edits a plan may be given, smallest first: one flag, another layout, another way to train, other hardware.

An edit only proposes; :mod:`shardwise.explain.changes` asks the rules about it and predicts it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.engines.table import ENGINES, state_bytes
from shardwise.optimizers import eight_bit_form
from shardwise.plan import Plan
from shardwise.recipe import Precision, Recipe
from shardwise.schedules.table import CHUNKED_SCHEDULE, DEFAULT_SCHEDULE

__all__ = [
    "FLAG",
    "HARDWARE",
    "LAYOUT",
    "TRAINING",
    "Edit",
    "faster_edits",
    "host_edits",
    "recipe_edit",
    "smaller_edits",
    "with_pinned_batch",
]

LOSS_CHUNKS = 8

FLAG, LAYOUT, TRAINING, HARDWARE = 0, 1, 2, 3
"""Effort of an edit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A plan made from another by one change."""

    text: str
    """What to type, as ``recompute=full``."""
    cost: str
    effort: int
    plan: Plan


def smaller_edits(plan: Plan) -> Iterator[Edit]:
    """Edits that hold less on the device, by effort and then by how little they cost."""
    pinned = with_pinned_batch(plan)
    yield from _flag_edits(pinned)
    yield from _sharding_edits(pinned)
    yield from _degree_edits(pinned)
    yield from _training_edits(pinned)


def host_edits(plan: Plan) -> Iterator[Edit]:
    """Edits that hold less on the host: less is offloaded, or it goes to drives."""
    pinned = with_pinned_batch(plan)
    recipe = pinned.recipe
    if recipe.activation_offload:
        kept = replace(recipe, activation_offload=False)
        yield recipe_edit(pinned, "activation_offload=false", "activations stay on the GPU", FLAG, kept)
    if recipe.offload == "none":
        return
    yield recipe_edit(pinned, "offload=none", "states stay on the GPU", FLAG, replace(recipe, offload="none"))
    if recipe.offload == "parameters":
        weights = replace(recipe, offload="optimizer")
        yield recipe_edit(pinned, "offload=optimizer", "weights stay on the GPU", FLAG, weights)
    if recipe.offload != "nvme":
        drives = replace(recipe, offload="nvme")
        yield recipe_edit(pinned, "offload=nvme", "the update waits for the drives", TRAINING, drives)


def faster_edits(plan: Plan) -> Iterator[Edit]:
    """Edits that use spare memory, or spare a cost, to make the step shorter."""
    pinned = with_pinned_batch(plan)
    recipe, layout = pinned.recipe, pinned.layout
    if recipe.offload != "none":
        yield recipe_edit(pinned, "offload=none", "states stay on the GPU", FLAG, replace(recipe, offload="none"))
    if recipe.writes_scores:
        yield recipe_edit(pinned, "attention=flash", "none", FLAG, recipe.with_fused_attention())
    if not recipe.compile and ENGINES[pinned.engine].has_compile_switch:
        yield recipe_edit(pinned, "compile=true", "compile time at start", FLAG, replace(recipe, compile=True))
    if recipe.recompute == "full":
        lighter = replace(recipe, recompute="selective")
        yield recipe_edit(pinned, "recompute=selective", "more activations are kept", FLAG, lighter)
    if recipe.recompute != "none":
        yield recipe_edit(
            pinned,
            "recompute=none",
            "all activations are kept",
            FLAG,
            replace(recipe, recompute="none", recompute_modules=None),
        )
    for times in (2, 4):
        size = recipe.micro_batch_size * times
        larger = replace(recipe, micro_batch_size=size)
        yield recipe_edit(pinned, f"micro_batch_size={size}", f"{times}x the activations", FLAG, larger)
    if layout.zero_stage == 3 and layout.reshard_after_forward and layout.state_shard_size > 1:
        kept = replace(layout, reshard_after_forward=False)
        text, cost = "reshard_after_forward=false", "gathered weights stay until backward"
        yield Edit(text=text, cost=cost, effort=FLAG, plan=replace(pinned, layout=kept))
    yield from _faster_layouts(pinned)
    if recipe.precision == "fp32":
        mixed = replace(recipe, precision="bf16-mixed")
        yield recipe_edit(pinned, "precision=bf16-mixed", "16-bit matrix products: check the loss", TRAINING, mixed)
    if recipe.precision in ("bf16-mixed", "fp16-mixed") and pinned.cluster.gpu.peak_flop_per_s("fp8") > 0:
        yield recipe_edit(
            pinned,
            "precision=fp8-mixed",
            "8-bit matrix products: check the loss",
            TRAINING,
            replace(recipe, precision="fp8-mixed"),
        )


def with_pinned_batch(plan: Plan) -> Plan:
    """The plan with its global batch written down, so that no edit changes what is trained."""
    return replace(plan, recipe=replace(plan.recipe, global_batch_size=plan.global_batch_size))


def recipe_edit(plan: Plan, text: str, cost: str, effort: int, recipe: Recipe) -> Edit:
    """An edit of the recipe alone."""
    return Edit(text=text, cost=cost, effort=effort, plan=replace(plan, recipe=recipe))


def _flag_edits(plan: Plan) -> Iterator[Edit]:
    recipe, layout = plan.recipe, plan.layout
    if recipe.writes_scores:
        yield recipe_edit(plan, "attention=flash", "none: same result, faster", FLAG, recipe.with_fused_attention())
    if recipe.loss_chunks == 1 and plan.model.has_head:
        chunked = replace(recipe, loss_chunks=LOSS_CHUNKS)
        yield recipe_edit(plan, f"loss_chunks={LOSS_CHUNKS}", "a few launches", FLAG, chunked)
    if layout.tp > 1 and not layout.sequence_parallel:
        divided = replace(plan, layout=replace(layout, sequence_parallel=True))
        yield Edit(text="sequence_parallel=true", cost="none: the same bytes move", effort=FLAG, plan=divided)
    if not layout.reshard_after_forward and layout.zero_stage == 3:
        again = replace(plan, layout=replace(layout, reshard_after_forward=True))
        yield Edit(
            text="reshard_after_forward=true", cost="weights are gathered again for backward", effort=FLAG, plan=again
        )
    if recipe.recompute == "none":
        yield recipe_edit(
            plan, "recompute=selective", "a few per cent more compute", FLAG, replace(recipe, recompute="selective")
        )
    if recipe.recompute != "full" or recipe.recompute_layers is not None:
        everything = replace(recipe, recompute="full", recompute_layers=None, recompute_modules=None)
        yield recipe_edit(plan, "recompute=full", "about a third more compute", FLAG, everything)
    yield from _micro_batch_edits(plan)


def _micro_batch_edits(plan: Plan) -> Iterator[Edit]:
    size = plan.recipe.micro_batch_size
    for smaller in sorted({size // 2, 1}, reverse=True):
        if 1 <= smaller < size:
            recipe = replace(plan.recipe, micro_batch_size=smaller)
            yield recipe_edit(plan, f"micro_batch_size={smaller}", "smaller matrix products", FLAG, recipe)


def _sharding_edits(plan: Plan) -> Iterator[Edit]:
    layout = plan.layout
    for stage in (1, 2, 3):
        if stage <= layout.zero_stage and layout.state_shard_size > 1:
            continue
        divided = replace(
            layout,
            zero_stage=stage,
            dp_shard=layout.data_parallel_size if layout.state_shard_size == 1 else layout.dp_shard,
            dp_replicate=1 if layout.state_shard_size == 1 else layout.dp_replicate,
        )
        if divided == layout or divided.state_shard_size == 1:
            continue
        cost = {1: "almost none", 2: "almost none", 3: "weights are gathered for every forward and backward"}[stage]
        shard = f" dp_shard={divided.dp_shard}" if divided.dp_shard != layout.dp_shard else ""
        copies = f" dp_replicate={divided.dp_replicate}" if divided.dp_replicate != layout.dp_replicate else ""
        text = f"zero_stage={stage}{copies}{shard}"
        yield Edit(text=text, cost=cost, effort=LAYOUT, plan=replace(plan, layout=divided))
    if layout.dp_replicate > 1 and layout.zero_stage > 0:
        size = layout.data_parallel_size
        text = f"dp_replicate=1 dp_shard={size}"
        whole = replace(layout, dp_replicate=1, dp_shard=size)
        yield Edit(text=text, cost="gathers cross the node boundary", effort=LAYOUT, plan=replace(plan, layout=whole))


def _degree_edits(plan: Plan) -> Iterator[Edit]:
    """Twice or four times a degree of model parallelism, taken from the data-parallel ranks."""
    costs = {
        "tp": "two exchanges of activations per layer and direction",
        "cp": "keys and values travel between ranks",
        "pp": "idle stages at the start and end of each step",
    }
    for axis in ("tp", "cp", "pp"):
        for times in (2, 4, 8):
            edited = _shift_degree(plan, axis=axis, times=times)
            if edited is not None:
                degree = getattr(edited.layout, axis)
                text = f"{axis}={degree} {_data_text(edited)}"
                yield Edit(text=text, cost=costs[axis], effort=LAYOUT, plan=edited)
    layout = plan.layout
    if layout.vpp > 1:
        plain = replace(layout, vpp=1, schedule=DEFAULT_SCHEDULE)
        cost = "a longer bubble"
        yield Edit(
            text=f"vpp=1 schedule={DEFAULT_SCHEDULE}", cost=cost, effort=LAYOUT, plan=replace(plan, layout=plain)
        )
    if layout.pp > 1 and layout.vpp == 1 and layout.schedule != DEFAULT_SCHEDULE:
        plain = replace(layout, schedule=DEFAULT_SCHEDULE)
        yield Edit(
            text=f"schedule={DEFAULT_SCHEDULE}", cost="a longer bubble", effort=LAYOUT, plan=replace(plan, layout=plain)
        )


def _shift_degree(plan: Plan, *, axis: str, times: int) -> Plan | None:
    layout = plan.layout
    donor = next((name for name in ("dp_replicate", "dp_shard") if getattr(layout, name) % times == 0), None)
    if donor is None:
        return None
    degrees = {axis: getattr(layout, axis) * times, donor: getattr(layout, donor) // times}
    divides_sequence = axis == "tp" or layout.sequence_parallel
    shifted = replace(layout, **degrees, sequence_parallel=divides_sequence and degrees.get("tp", layout.tp) > 1)
    return replace(plan, layout=shifted)


def _data_text(plan: Plan) -> str:
    replicate = f"dp_replicate={plan.layout.dp_replicate} " if plan.layout.dp_replicate > 1 else ""
    return f"{replicate}dp_shard={plan.layout.dp_shard}"


def _training_edits(plan: Plan) -> Iterator[Edit]:
    recipe = plan.recipe
    narrow = eight_bit_form(recipe.optimizer)
    if narrow is not None:
        small = replace(recipe, optimizer=narrow)
        yield recipe_edit(plan, f"optimizer={narrow}", "moments in 8 bits: check the loss", TRAINING, small)
    if not recipe.activation_offload:
        moved = replace(recipe, activation_offload=True)
        yield recipe_edit(plan, "activation_offload=true", "activations cross PCIe twice", TRAINING, moved)
    if recipe.offload == "none":
        costs = {"optimizer": "the update runs on the host", "parameters": "weights cross PCIe as well"}
        for offload, cost in costs.items():
            moved = replace(recipe, offload=offload)  # type: ignore[arg-type]
            yield recipe_edit(plan, f"offload={offload}", cost, TRAINING, moved)
    mixed: tuple[Precision, ...] = ("bf16-mixed", "fp16-mixed")
    if recipe.precision in mixed and not state_bytes(engine=plan.engine, precision="bf16").master_bytes:
        yield recipe_edit(
            plan,
            "precision=bf16",
            "no fp32 master weights: check the loss",
            TRAINING,
            replace(recipe, precision="bf16"),
        )
    if recipe.precision == "fp32":
        yield recipe_edit(
            plan, "precision=bf16-mixed", "bf16 matrix products", TRAINING, replace(recipe, precision="bf16-mixed")
        )
    if recipe.adapter == "none":
        yield recipe_edit(
            plan, "adapter=lora", "trains adapters, not the model", TRAINING, replace(recipe, adapter="lora")
        )


def _faster_layouts(plan: Plan) -> Iterator[Edit]:
    layout = plan.layout
    for axis in ("tp", "pp", "cp"):
        degree = getattr(layout, axis)
        if degree > 1 and degree % 2 == 0:
            degrees = {axis: degree // 2, "dp_shard": layout.dp_shard * 2}
            keeps = layout.sequence_parallel and degrees.get("tp", layout.tp) > 1
            pipeline = {} if axis != "pp" or degree > 2 else {"vpp": 1, "schedule": DEFAULT_SCHEDULE}
            edited = replace(plan, layout=replace(layout, **degrees, **pipeline, sequence_parallel=keeps))  # type: ignore[arg-type]
            text = f"{axis}={degree // 2} {_data_text(edited)}"
            yield Edit(text=text, cost="more of the model on each GPU", effort=LAYOUT, plan=edited)
    if layout.pp > 1 and layout.vpp == 1 and layout.schedule == DEFAULT_SCHEDULE:
        interleaved = replace(layout, vpp=2, schedule=CHUNKED_SCHEDULE)
        yield Edit(
            text=f"schedule={CHUNKED_SCHEDULE} vpp=2",
            cost="more micro-batches in flight, twice the sends",
            effort=LAYOUT,
            plan=replace(plan, layout=interleaved),
        )
    yield from _replicating_layouts(plan)


def _replicating_layouts(plan: Plan) -> Iterator[Edit]:
    """HSDP inside a node, and lower ZeRO stages."""
    layout, per_node = plan.layout, plan.cluster.node.gpus_per_node
    inside = per_node // (layout.tp * layout.cp) if per_node % (layout.tp * layout.cp) == 0 else 0
    if 1 < inside < layout.dp_shard and layout.dp_shard % inside == 0:
        hybrid = replace(layout, dp_replicate=layout.dp_replicate * layout.dp_shard // inside, dp_shard=inside)
        edited = replace(plan, layout=hybrid)
        yield Edit(text=_data_text(edited), cost="states divided by the node only", effort=LAYOUT, plan=edited)
    for stage in range(layout.zero_stage - 1, -1, -1):
        if stage == 0:
            size = layout.data_parallel_size
            lower = replace(layout, zero_stage=0, dp_replicate=size, dp_shard=1)
            text = f"zero_stage=0 dp_replicate={size} dp_shard=1"
        else:
            lower = replace(layout, zero_stage=stage)  # type: ignore[arg-type]
            text = f"zero_stage={stage}"
        yield Edit(text=text, cost="more states on each GPU", effort=LAYOUT, plan=replace(plan, layout=lower))
