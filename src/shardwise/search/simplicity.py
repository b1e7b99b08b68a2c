"""How simple a layout is to run: few axes, little model parallelism, shard groups that fill nodes evenly."""

from shardwise.layout import Layout
from shardwise.plan import Plan

__all__ = ["num_axes", "short_layout", "short_variant", "simplicity", "straddles_nodes"]


def num_axes(layout: Layout) -> int:
    """Kinds of parallelism in use."""
    degrees = (layout.dp_replicate, layout.dp_shard, layout.tp, layout.cp, layout.pp, layout.ep, layout.vpp)
    return sum(degree > 1 for degree in degrees)


def simplicity(layout: Layout) -> tuple[int | str, ...]:
    """Fewer axes, then less tensor and pipeline parallelism: simplest setup that works first."""
    model_parallel = layout.tp * layout.pp * layout.cp
    return (num_axes(layout), model_parallel, layout.pp, layout.tp, layout.ep, layout.vpp, layout.schedule)


def straddles_nodes(plan: Plan) -> bool:
    """Whether the ranks that divide states reach over nodes without filling them.

    They are consecutive within a stage, so they fill nodes when their number is a multiple or a divisor of a node's
    GPUs. A group that does not has some nodes to itself and shares others, and its slowest link carries uneven loads.
    """
    layout, gpus_per_node = plan.layout, plan.cluster.node.gpus_per_node
    group = layout.tp * layout.state_shard_size
    is_divided = layout.zero_stage > 0 and layout.state_shard_size > 1
    return is_divided and group % gpus_per_node > 0 and gpus_per_node % group > 0


def short_layout(plan: Plan) -> str:
    """The degrees above one, as ``tp=8 pp=2 dp_shard=4``."""
    layout = plan.layout
    names = ("dp_replicate", "dp_shard", "tp", "cp", "pp", "vpp", "ep")
    shown = [f"{name}={getattr(layout, name)}" for name in names if getattr(layout, name) > 1]
    return " ".join(shown) or "one GPU"


def short_variant(plan: Plan) -> str:
    """The degrees above one, and what variants of the same degrees differ in."""
    return f"{short_layout(plan)}, recompute {plan.recipe.recompute}, micro-batch {plan.recipe.micro_batch_size}"
