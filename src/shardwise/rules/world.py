"""Rules about the machines: how many ranks there are and where the nodes end."""

from collections.abc import Iterable

from shardwise.cluster import Cluster
from shardwise.plan import Plan
from shardwise.rules.changes import filling_axis
from shardwise.rules.degrees import divisors, nearest_first
from shardwise.rules.refusal import Changes, change
from shardwise.rules.rule import Rule

MODEL_AXES = ("cp", "pp", "tp", "dp_replicate")


def _breaks_world_size(plan: Plan) -> bool:
    return plan.layout.world_size != plan.cluster.num_gpus


def _world_size_message(plan: Plan) -> str:
    la = plan.layout
    degrees = (
        ("dp_replicate", la.dp_replicate),
        ("dp_shard", la.dp_shard),
        ("tp", la.tp),
        ("cp", la.cp),
        ("pp", la.pp),
    )
    named = " with ".join(f"{name}={degree}" for name, degree in degrees if degree > 1) or "one rank"
    gpus = f"{la.world_size} GPU" + ("s" if la.world_size != 1 else "")
    return f"{named} places {gpus}, but the cluster has {plan.cluster.num_gpus}"


def _world_size_candidates(plan: Plan) -> Iterable[Changes]:
    la, num_gpus = plan.layout, plan.cluster.num_gpus
    filling = filling_axis(la)
    degrees = {"cp": la.cp, "pp": la.pp, "tp": la.tp, "dp_replicate": la.dp_replicate, "dp_shard": la.dp_shard}
    for axis in dict.fromkeys((filling, "dp_shard")):
        others = la.world_size // degrees[axis]
        if num_gpus % others == 0:
            yield ((axis, num_gpus // others),)
    others = la.world_size // degrees[filling]
    for model_axis in MODEL_AXES:
        if model_axis == filling:
            continue
        rest = others // degrees[model_axis]
        smaller = [degree for degree in divisors(num_gpus) if degree < degrees[model_axis]]
        fitting = [degree for degree in smaller if num_gpus % (rest * degree) == 0]
        for degree in nearest_first(fitting, degrees[model_axis]):
            yield ((model_axis, degree), (filling, num_gpus // (rest * degree)))
    yield (("tp", 1), ("cp", 1), ("pp", 1), ("dp_replicate", 1), (filling, num_gpus))


def fast_domain_gpus(cluster: Cluster) -> int:
    """GPUs that reach each other without the network between nodes: a node, or a rack whose links span nodes."""
    return max(cluster.node.scale_up_domain_gpus, cluster.node.gpus_per_node)


def leaves_fast_domain(cluster: Cluster, tp: int) -> bool:
    """Whether some tensor-parallel group of ``tp`` neighbouring ranks talks over the network between nodes.

    A group that divides a node never does, whatever other groups make of a last node that lacks GPUs.
    """
    return tp > 1 and cluster.node.gpus_per_node % tp != 0 and cluster.link_of(tp) == "network"


def _breaks_node_boundary(plan: Plan) -> bool:
    return leaves_fast_domain(plan.cluster, plan.layout.tp)


def _node_boundary_message(plan: Plan) -> str:
    tp, domain = plan.layout.tp, fast_domain_gpus(plan.cluster)
    place = "node" if domain == plan.cluster.node.gpus_per_node else "scale-up domain"
    if tp > domain:
        return f"tp={tp} exceeds the {domain} GPUs of a {place}: every layer waits for the network four times"
    return f"tp={tp} does not divide the {domain} GPUs of a {place}, so some groups straddle two of them"


def _node_boundary_candidates(plan: Plan) -> Iterable[Changes]:
    for tp in nearest_first(divisors(fast_domain_gpus(plan.cluster)), plan.layout.tp):
        if tp < plan.layout.tp:
            yield (("tp", tp),)
    yield (("tp", 1),)


def _breaks_fast_links(plan: Plan) -> bool:
    tp, node = plan.layout.tp, plan.cluster.node
    if tp == 1:
        return False
    link = plan.cluster.link_of(tp)
    no_fast_link = node.scale_up_bandwidth_bytes_per_s <= node.gpu.pcie_bandwidth_bytes_per_s
    return link == "host" or (link == "scale_up" and no_fast_link)


def _fast_links_message(plan: Plan) -> str:
    tp, node = plan.layout.tp, plan.cluster.node
    gigabytes = node.gpu.pcie_bandwidth_bytes_per_s / 1e9
    return f"tp={tp} all-reduces every layer over PCIe at {gigabytes:g} GB/s: {node.id} has no faster link for them"


RULES = (
    Rule(
        name="layout-world-size",
        why="world size = dp_replicate * dp_shard * tp * cp * pp, and every GPU runs exactly one rank; "
        "ep borrows data-parallel ranks and does not multiply.",
        source="torchtitan distributed/parallel_dims.py; Megatron-LM core/parallel_state.py",
        reads=("world_size",),
        breaks=_breaks_world_size,
        message=_world_size_message,
        candidates=_world_size_candidates,
    ),
    Rule(
        name="layout-tp-crosses-nodes",
        severity="warning",
        why="Tensor parallelism communicates several times in every layer with nothing to hide behind, so its group "
        "stays inside the fast domain: a node, or the rack where links span nodes (NVL72). Wider groups run, slowly: a "
        "search looks at them only when it is given tp.",
        source="Narayanan et al. 2021, arXiv:2104.04473, section 3 (takeaway 1) and figure 13 (tp 16 and 32 on A100)",
        breaks=_breaks_node_boundary,
        message=_node_boundary_message,
        candidates=_node_boundary_candidates,
    ),
    Rule(
        name="layout-tp-over-pcie",
        severity="warning",
        why="Without NVLink or a similar link the all-reduces of tensor parallelism run over PCIe and dominate.",
        source="catalogue of nodes: link bandwidth not above PCIe",
        breaks=_breaks_fast_links,
        message=_fast_links_message,
        candidates=(change(tp=1),),
    ),
)
