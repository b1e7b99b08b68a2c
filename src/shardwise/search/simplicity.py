"""How simple a layout is to run: few axes, little model parallelism, shard groups that fill nodes evenly; and up to
what difference in speed the simpler one is preferred."""

from shardwise.layout import Layout
from shardwise.plan import Plan

__all__ = [
    "MAX_TIE_FRACTION",
    "host_moves",
    "moved_words",
    "num_axes",
    "short_layout",
    "short_variant",
    "simplicity",
    "straddles_nodes",
    "told_apart",
    "variant_words",
]

MAX_TIE_FRACTION = 0.05
"""Two layouts of one model on one cluster share most of the prediction's error, so the band of a single figure would
call too much a tie: the tie is half that band, and never more than this, a little over half of the 8.9 % that two rows
of a published sweep are off from their measured ratio in the median (``benchmarks/search_regret.py``)."""
FINER_FIELDS = ("zero_stage", "reshard_after_forward", "sequence_parallel", "schedule", "stage_layers")
"""Fields of a layout, apart from the degrees, in which two plans of equal degrees may differ."""


def num_axes(layout: Layout) -> int:
    """Kinds of parallelism in use."""
    data = (layout.dp_replicate, layout.dp_shard)
    degrees = (*data, layout.tp, layout.cp, layout.pp, layout.ep, layout.expert_tp, layout.vpp)
    return sum(degree > 1 for degree in degrees)


def simplicity(layout: Layout) -> tuple[int | str, ...]:
    """Fewer axes, then less tensor and pipeline parallelism: simplest setup that works first."""
    model_parallel = layout.tp * layout.pp * layout.cp
    return (num_axes(layout), model_parallel, layout.pp, layout.tp, layout.ep, layout.vpp, layout.schedule)


def host_moves(plan: Plan) -> int:
    """Kinds of tensors that are moved to the host: states, activations."""
    return (plan.recipe.offload != "none") + plan.recipe.activation_offload


def straddles_nodes(plan: Plan) -> bool:
    """Whether the ranks that divide states reach over nodes without filling them.

    They are consecutive within a stage, so they fill nodes when their number is a multiple or a divisor of a node's
    GPUs. A group that does not has some nodes to itself and shares others, and its slowest link carries uneven loads.
    """
    layout, gpus_per_node = plan.layout, plan.cluster.node.gpus_per_node
    group = layout.tp * layout.state_shard_size
    is_divided = (layout.zero_stage > 0) & (layout.state_shard_size > 1)
    return is_divided & (group % gpus_per_node > 0) & (gpus_per_node % group > 0)


def short_layout(plan: Plan) -> str:
    """The degrees above one, as ``tp=8 pp=2 dp_shard=4``."""
    layout = plan.layout
    names = ("dp_replicate", "dp_shard", "tp", "cp", "pp", "vpp", "ep", "expert_tp")
    shown = [f"{name}={getattr(layout, name)}" for name in names if getattr(layout, name) > 1]
    return " ".join(shown) or "one GPU"


def told_apart(plan: Plan, other: Plan) -> str:
    """The degrees of a plan; where another has the same ones, how the recipe and the finer fields make them two."""
    mine, theirs = plan.layout, other.layout
    if short_layout(plan) != short_layout(other):
        return short_layout(plan)
    finer = [
        f", {name}={_spelled(getattr(mine, name))}"
        for name in FINER_FIELDS
        if getattr(mine, name) != getattr(theirs, name)
    ]
    return short_variant(plan) + "".join(finer)


def _spelled(value: object) -> str:
    """As the command line writes it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return "even" if value is None else str(value)


def moved_words(plan: Plan) -> str:
    """The tensors that a plan keeps on the host, in words; empty where it keeps none there."""
    words = {"none": "", "optimizer": "optimizer states", "parameters": "parameters and optimizer states"}
    states = words.get(plan.recipe.offload, "optimizer states (on drives)")
    parts = [states, "activations" if plan.recipe.activation_offload else ""]
    return " and ".join(part for part in parts if part)


def short_variant(plan: Plan) -> str:
    """The degrees above one, then recomputation, micro-batch size and offloading, in words."""
    return f"{short_layout(plan)}, {variant_words(plan)}"


def variant_words(plan: Plan) -> str:
    """Recomputation, micro-batch size and offloading of a plan, in words: variants of equal degrees differ in these."""
    recipe = plan.recipe
    layers = f" of {recipe.recompute_layers} layers a stage" if recipe.recompute_layers else ""
    modules = recipe.recompute_modules if recipe.recompute == "selective" else None
    recomputed = "+".join(modules) if modules else f"{recipe.recompute}{layers}"
    host = "".join(
        f", {name} offloaded"
        for name, moves in ((recipe.offload, recipe.offload != "none"), ("activations", recipe.activation_offload))
        if moves
    )
    return f"recompute {recomputed}, micro-batch {recipe.micro_batch_size}{host}"
