"""A layout in words, as one engineer says it to another, and as options of the command line."""

from collections.abc import Iterator
from dataclasses import fields

from shardwise.engines.table import ENGINES
from shardwise.fields import plan_fields
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.render.names import stages_text, value_text
from shardwise.render.screen_lines import UNBROKEN
from shardwise.schedules.table import DEFAULT_SCHEDULE
from shardwise.search.candidates import SEARCHED_FIELDS
from shardwise.search.simplicity import moved_words

NO_RESHARD = " no reshard"
"""Parameters stay gathered after the forward pass, as every pipeline keeps them."""
ALWAYS_TYPED = ("dp_shard", "zero_stage", "micro_batch_size", "recompute")


def layout_words(plan: Plan) -> str:
    """``FSDP (ZeRO-3) over 8 GPUs``, or ``ZeRO-1 over 8, tensor parallel 4, 2 pipeline stages``."""
    return ", ".join((_data_words(plan), *_model_words(plan.layout)))


def _is_called_zero(plan: Plan) -> bool:
    """Whether an engine's users say ZeRO-3 for divided parameters; those of all others say FSDP."""
    return ENGINES[plan.engine].profile.sharding == "deepspeed"


def _data_words(plan: Plan) -> str:
    """The data parallelism of a layout in words."""
    layout = plan.layout
    copies, shards = layout.dp_replicate, layout.dp_shard
    if shards == 1 or layout.zero_stage == 0:
        ranks = layout.data_parallel_size
        if layout.world_size == 1:
            return "one GPU, nothing divided"
        return "no data parallelism" if ranks == 1 else f"data parallel over {ranks:,}, every rank with all states"
    words = f"ZeRO-{layout.zero_stage}"
    if layout.zero_stage == 3 and not _is_called_zero(plan):
        words = "FSDP (ZeRO-3)" if layout.reshard_after_forward else "FSDP, parameters kept after forward,"
    if copies == 1:
        return f"{words} over {shards:,} {'GPUs' if layout.world_size == shards else 'ranks'}"
    name = "HSDP: " if layout.zero_stage == 3 and not _is_called_zero(plan) else ""
    return f"{name}{copies:,} copies, each {words} over {shards:,} ranks"


def _model_words(layout: Layout) -> Iterator[str]:
    if layout.tp > 1:
        yield f"tensor parallel {layout.tp}"
    if layout.cp > 1:
        yield f"context parallel {layout.cp}"
    if layout.ep > 1:
        yield f"expert parallel {layout.ep}"
    if layout.expert_tp > 1 and layout.expert_tp != layout.tp:
        yield f"tensor parallel {layout.expert_tp} in experts"
    if layout.pp > 1:
        chunks = f" of {layout.vpp} chunks" if layout.vpp > 1 else ""
        order = "" if layout.schedule == DEFAULT_SCHEDULE else f" ({layout.schedule})"
        uneven = "" if layout.stage_layers is None else f" with {stages_text(layout.stage_layers)} layers"
        yield f"{layout.pp} pipeline stages{chunks}{order}{uneven}"


def recipe_words(plan: Plan) -> str:
    """A recipe in words: its recomputation, its micro-batch, and the tensors that it keeps on the host."""
    recipe = plan.recipe
    most = "a stage" if plan.layout.pp > 1 else f"of {plan.model.num_hidden_layers}"
    layers = f" of {_layers_text(recipe.recompute_layers)} {most}" if recipe.recompute_layers else ""
    kept = "nothing recomputed" if recipe.recompute == "none" else f"{recipe.recompute} recomputation{layers}"
    if recipe.recompute_modules and recipe.recompute == "selective":
        *others, last = recipe.recompute_modules
        kept = f"{', '.join(others)} and {last} recomputed" if others else f"{last} recomputed"
    moved = moved_words(plan)
    return f"{kept}, micro-batch {recipe.micro_batch_size}{f', {moved} on the host' if moved else ''}"


def _layers_text(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"


def kept_words(recipe: Recipe) -> tuple[str, str]:
    """The recomputation of a plan and the tensors it keeps on the host, in the few words a row has room for."""
    layers = f" of {recipe.recompute_layers}" if recipe.recompute_layers else ""
    recomputed = "" if recipe.recompute == "none" else f"{recipe.recompute} recompute{layers}"
    if recipe.recompute_modules and recipe.recompute == "selective":
        first, *others = recipe.recompute_modules
        recomputed = f"recompute {1 + len(others)} modules" if others else f"recompute {first}"
    states = {"none": "", "optimizer": "optimizer", "parameters": "weights", "nvme": "weights (drives)"}
    moved = "+".join(filter(None, (states[recipe.offload], "activations" if recipe.activation_offload else "")))
    return recomputed, f"{moved} on host" if moved else ""


def short_words(plan: Plan) -> str:
    """A layout in the few words that a table has room for: ``FSDP 8``, ``HSDP 4x8 + TP 4 + PP 2``."""
    layout = plan.layout
    copies, shards = layout.dp_replicate, layout.dp_shard
    is_divided = shards > 1 and layout.zero_stage > 0
    is_zero = layout.zero_stage < 3 or _is_called_zero(plan)
    name = f"ZeRO-{layout.zero_stage}" if is_zero else "FSDP" if copies == 1 else "HSDP"
    kept = "" if is_zero or layout.reshard_after_forward or layout.pp > 1 else NO_RESHARD
    data = [f"{name} {f'{copies}x' if copies > 1 else ''}{shards}{kept}"] if is_divided else []
    if not data and layout.data_parallel_size > 1:
        data = [f"DDP {layout.data_parallel_size}"]
    axes = (("TP", layout.tp), ("CP", layout.cp), ("EP", layout.ep), ("PP", layout.pp), ("VPP", layout.vpp))
    return " + ".join((*data, *(f"{axis} {degree}" for axis, degree in axes if degree > 1))) or "one GPU"


def options_text(plan: Plan) -> str:
    """What ``predict`` takes after MODEL, CLUSTER and the question to be asked about exactly this plan.

    No line ends between an option and its value.
    """
    words: list[str] = []
    for record, value_of in ((Layout, plan.layout), (Recipe, plan.recipe)):
        defaults = {field.name: field.default for field in fields(record)}
        for field in plan_fields(record):
            value = getattr(value_of, field.name)
            is_shown = field.name in ALWAYS_TYPED or value != defaults[field.name]
            if (record is Recipe and field.name not in SEARCHED_FIELDS) or not is_shown or value is None:
                continue
            if field.name == "schedule" and plan.layout.pp == 1:
                continue
            words.append(typed_option(field.option, value).replace(" ", UNBROKEN))
    return " ".join(words)


def typed_option(option: str, value: object) -> str:
    """An option with its value, as it is typed."""
    if isinstance(value, bool):
        return option if value else f"--no-{option.removeprefix('--')}"
    return f"{option} {value_text(value)}"
