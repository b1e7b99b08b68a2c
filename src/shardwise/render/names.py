"""Short names of records for a title line: what was planned, on what, divided how."""

import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, replace
from itertools import groupby

from shardwise.attention_kernels import ATTENTION_KERNELS
from shardwise.cluster import Cluster
from shardwise.layout import Layout
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.predict.idle_switches import idle_switches
from shardwise.prediction import Prediction
from shardwise.recipe import Recipe
from shardwise.rules import Refusal, find_refusals
from shardwise.schedules.table import DEFAULT_SCHEDULE
from shardwise.step.attention_kernel import attention_kernel
from shardwise.step.expert_routing import imbalance_ratio
from shardwise.units import format_count, format_days, format_gib

_ALWAYS_SHOWN = frozenset({"dp_shard", "zero_stage", "tp", "pp"})
SETTINGS = ("micro_batch_size", "recompute")
SAID_IN_QUESTION = frozenset(
    {
        "seq_len",
        "global_batch_size",
        "tokens",
        "precision",
        "optimizer",
        "adapter",
        "lora_rank",
        "lora_targets",
        "compile",
        "attention",
        "attention_kernel",
    }
)
"""Fields of a recipe that :func:`shardwise.render.question.question_lines` says in words."""
OWN_KERNELS = {"Google": "a fused kernel of XLA", "Intel": "a fused kernel of Intel's"}
"""The fused attention of makers for whose parts nobody wrote FlashAttention-2."""
QUESTION_FIELDS = ("seq_len", "global_batch_size", "precision", "optimizer")


def model_text(model: ModelSpec) -> str:
    """``llama-3.1-70b, 70.55B parameters``, with the active ones of a mixture of experts."""
    counted = f"{model.name}, {format_count(model.num_params)} parameters"
    return f"{counted}, {format_count(model.num_active_params)} active" if model.is_moe else counted


def short_model_text(model: ModelSpec) -> str:
    """``llama-3.1-70b (70.55B)``, with the active parameters of a mixture of experts."""
    active = f", {format_count(model.num_active_params)} active" if model.is_moe else ""
    return f"{model.name} ({format_count(model.num_params)}{active})"


def cluster_text(cluster: Cluster) -> str:
    """``64 x H100 SXM 80GB (8 nodes of 8)``, with a network that was given and what the last node lacks."""
    lacking = f", {cluster.num_missing_gpus} missing" if cluster.num_missing_gpus else ""
    nodes = "1 node" if cluster.num_nodes == 1 else f"{cluster.num_nodes:,} nodes of {cluster.node.gpus_per_node}"
    return f"{cluster.num_gpus:,} x {cluster.gpu.name} ({nodes}{_network_text(cluster)}{lacking})"


def _network_text(cluster: Cluster) -> str:
    """The fabric between nodes, where a description names it or its rate; empty where it is what the nodes have."""
    given = json.loads(cluster.spec_json or "{}")
    if cluster.num_nodes == 1 or not isinstance(given, dict) or not any(key.startswith("network") for key in given):
        return ""
    return f" over {cluster.node.network.id}"


def layout_text(layout: Layout) -> str:
    """The degrees that matter: the four every layout has, and the others where they are not the default."""
    default = Layout()
    shown: list[str] = []
    for field in fields(Layout):
        value = getattr(layout, field.name)
        if field.name == "schedule" and layout.pp == 1:
            continue
        if field.name in _ALWAYS_SHOWN or value != getattr(default, field.name):
            shown.append(f"{field.name}={value_text(value)}")
    return " ".join(shown)


def degrees_text(layout: Layout) -> str:
    """The layout in the shortest form that still tells layouts of one search apart: ``dp=16 z3 tp=2 pp=4``."""
    parts = [f"rep={layout.dp_replicate}"] if layout.dp_replicate > 1 else []
    parts.append(f"dp={layout.dp_shard}")
    if layout.dp_shard > 1:
        parts.append(f"z{layout.zero_stage}")
    parts += [f"{axis}={degree}" for axis, degree in _degrees(layout) if degree > 1]
    if layout.pp > 1 and layout.schedule != DEFAULT_SCHEDULE:
        parts.append(layout.schedule)
    if layout.stage_layers is not None:
        parts.append(f"stages={stages_text(layout.stage_layers)}")
    if layout.pp == 1 and not layout.reshard_after_forward:
        parts.append("reshard=off")
    return " ".join(parts)


def stages_text(stage_layers: Sequence[int]) -> str:
    """Layers of each stage, equal neighbours together: ``8,9x2,6``."""
    runs = ((count, len(list(same))) for count, same in groupby(stage_layers))
    return ",".join(f"{count}x{times}" if times > 1 else str(count) for count, times in runs)


def _degrees(layout: Layout) -> tuple[tuple[str, int], ...]:
    experts = ("etp", layout.expert_tp)
    return (("tp", layout.tp), ("cp", layout.cp), ("pp", layout.pp), ("vpp", layout.vpp), ("ep", layout.ep), experts)


def gib_number(num_bytes: float) -> str:
    """GiB without the unit, for a column whose heading has it."""
    return format_gib(num_bytes).removesuffix(" GiB")


def days_number(days: float) -> str:
    """Days without the unit, for a column whose heading has it; less than one keeps its own."""
    return format_days(days).removesuffix(" days")


def question_text(recipe: Recipe) -> str:
    """The recipe without what a search chooses."""
    return recipe_text(
        replace(
            recipe,
            micro_batch_size=1,
            recompute="none",
            recompute_layers=None,
            recompute_modules=None,
            offload="none",
            activation_offload=False,
        ),
        always=QUESTION_FIELDS,
    )


def recipe_text(recipe: Recipe, *, always: tuple[str, ...], without: AbstractSet[str] = frozenset()) -> str:
    """The choices every reader asks for, and the others where they are not the default."""
    default = Recipe(seq_len=recipe.seq_len)
    shown: list[str] = []
    for field in fields(Recipe):
        value = getattr(recipe, field.name)
        if field.name in without:
            continue
        if field.name == "tokens" and value is not None:
            shown.append(f"tokens={format_count(value)}")
        elif field.name in always or value != getattr(default, field.name):
            shown.append(f"{field.name}={value_text(value)}")
    return " ".join(shown)


def settings_text(plan: Plan) -> str:
    """How the plan answers the question: its micro-batches, its recomputation, and what else is not the default."""
    count = plan.num_microbatches
    microbatches = "one micro-batch a rank" if count == 1 else f"{count:,} micro-batches a rank"
    return f"{recipe_text(plan.recipe, always=SETTINGS, without=SAID_IN_QUESTION)}, {microbatches}"


def recompute_text(recipe: Recipe) -> str:
    """The recomputation of a plan, its blocks a stage and the tensors on the host: ``full:12+optimizer+act``.

    Modules stand for themselves: ``layernorm, moe_act``.
    """
    layers = f":{recipe.recompute_layers}" if recipe.recompute_layers and recipe.recompute != "none" else ""
    states = "" if recipe.offload == "none" else f"+{recipe.offload}"
    modules = recipe.recompute_modules if recipe.recompute == "selective" else None
    recomputed = ", ".join(modules) if modules else f"{recipe.recompute}{layers}"
    return f"{recomputed}{states}{'+act' if recipe.activation_offload else ''}"


def attention_text(plan: Plan) -> str:
    """The kernel that computes attention, as ``attention by cuDNN``; empty for a model without attention.

    FlashAttention-2 is written for NVIDIA's and AMD's parts; those of other makers have a kernel of their own, which is
    predicted like it.
    """
    if not plan.model.attention:
        return ""
    kernel = attention_kernel(plan)
    vendor = OWN_KERNELS.get(plan.cluster.gpu.vendor, "") if kernel == "fa2" else ""
    return f"attention by {vendor or ATTENTION_KERNELS[kernel].title}"


def engine_text(plan: Plan) -> str:
    """The engine, the kernel of attention and what routing is taken for: ``torchtitan, attention by cuDNN``."""
    return ", ".join(part for part in (plan.engine, attention_text(plan), routing_text(plan)) if part)


def routing_text(plan: Plan) -> str:
    """What routing is taken for, as ``balanced routing``; empty where the recipe says it."""
    if plan.layout.ep == 1 or plan.recipe.routing_imbalance_ratio is not None or not plan.model.is_moe:
        return ""
    ratio = imbalance_ratio(plan)
    return "balanced routing" if ratio == 1 else f"natural routing {ratio:.2g}"


def value_text(value: object) -> str:
    """A field's value as the command line spells it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return str(value)


def calibration_lines(cluster: Cluster) -> tuple[str, ...]:
    """Where the calibration of a cluster is from and what it does not cover; nothing without one."""
    if cluster.calibration is None:
        return ()
    return tuple(note for note in cluster.assumptions if "calibrat" in note)


def stated_assumptions(*, plan: Plan, prediction: Prediction) -> tuple[str, ...]:
    """Everything that was filled in or taken for granted, each sentence once."""
    return tuple(dict.fromkeys((*plan.assumptions, *prediction.assumptions)))


def plan_warnings(plan: Plan, prediction: Prediction) -> tuple[Refusal, ...]:
    """Rules of severity warning that the plan breaks (it runs, with a consequence worth knowing), and switches that
    cost time and save nothing."""
    broken = (refusal for refusal in find_refusals(plan) if refusal.severity == "warning")
    return (*broken, *idle_switches(plan, prediction))
