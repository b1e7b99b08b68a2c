"""Which constraint binds, and what more memory or the next GPU type would change: searched around the answer."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardwise.cluster import Cluster
from shardwise.errors import ShardwiseError
from shardwise.ledger import TimeComponent
from shardwise.plan import Plan
from shardwise.search.bounds import IntRange, SearchBounds
from shardwise.search.clusters import bigger_gpus, with_gpu
from shardwise.search.one_pass import find
from shardwise.search.reasons import COMPONENT_WORDS
from shardwise.search.records import RankedPlan, SearchResult
from shardwise.search.simplicity import short_variant
from shardwise.search.team import ALONE, Team
from shardwise.units import GIB, Bytes, Seconds, format_gib, format_percent, format_seconds

__all__ = ["Sensitivity", "WhatIf", "what_if"]

MORE_MEMORY_BYTES: Bytes = 8 * GIB
FEW_PREDICTIONS = 3
MAX_TYPES = 8
SHOWN_PLANS = 1
"""Plans besides the fastest whose degrees, halved and doubled, span the space that is searched again."""
NOTEWORTHY_FRACTION = 0.01
NEIGHBOUR_AXES = ("tp", "cp", "pp", "vpp", "ep", "dp_replicate", "micro_batch_size")
WASTED: tuple[TimeComponent, ...] = ("exposed_communication", "pipeline_bubble", "recompute", "offload", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A changed machine and the fastest plan that was found on it."""

    change: str
    plan: Plan
    step_s: Seconds
    step_ratio: float
    """Over the fastest plan of the machine that was asked about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """What limits the fastest plan, and what was tried."""

    binding: str
    """A sentence."""
    changes: tuple[WhatIf, ...]


def what_if(result: SearchResult, *, limits: SearchBounds, team: Team = ALONE) -> Sensitivity | None:
    """What binds the fastest plan of an answer; ``None`` when there is none.

    Args:
        result: the answer.
        limits: the bounds of the search; what is tried stays inside them.
        team: who tries.
    """
    if not result.plans:
        return None
    fastest = min((*result.plans, *result.pareto), key=lambda ranked: ranked.prediction.time.step_s)
    near = _around(result.plans[:SHOWN_PLANS], fastest, limits)
    machines = [
        (f"{format_gib(MORE_MEMORY_BYTES)} more on every GPU", _with_more_memory(fastest.plan.cluster)),
        *_next_type(fastest.plan.cluster),
    ]
    tried = team.each(lambda machine: _tried(*machine, fastest, near, team), machines)
    changes = tuple(change for change in tried if change is not None)
    return Sensitivity(binding=_what_binds(fastest, changes), changes=changes)


def _with_more_memory(cluster: Cluster) -> Cluster:
    gpu = replace(cluster.gpu, memory_bytes=cluster.gpu.memory_bytes + MORE_MEMORY_BYTES)
    return replace(cluster, node=replace(cluster.node, gpu=gpu))


def _next_type(cluster: Cluster) -> list[tuple[str, Cluster]]:
    """The nearest part of the same make with more memory that is at least as fast, as many of them."""
    for gpu in bigger_gpus(cluster.gpu, limit=MAX_TYPES):
        if gpu.memory_bandwidth_bytes_per_s < cluster.gpu.memory_bandwidth_bytes_per_s:
            continue
        other = with_gpu(cluster, gpu)
        if other is not None:
            return [(f"{gpu.id} instead of {cluster.gpu.id}", other)]
    return []


def _tried(change: str, cluster: Cluster, fastest: RankedPlan, near: SearchBounds, team: Team) -> WhatIf | None:
    """The fastest plan around the answer; the plan itself where nothing faster was found on the same GPU."""
    question = replace(fastest.plan, cluster=cluster)
    try:
        fitting = find(question, near, is_brief=True, team=team).evaluation.fitting
    except ShardwiseError:  # the other part lacks a number format or a degree, so it cannot be compared
        return None
    if not fitting:
        return None
    best = min(fitting, key=lambda found: found.prediction.time.step_s)
    now_s, step_s, plan = fastest.prediction.time.step_s, best.prediction.time.step_s, best.plan
    if step_s > now_s and cluster.gpu.id == fastest.plan.cluster.gpu.id:
        step_s, plan = now_s, fastest.plan
    return WhatIf(change=change, plan=plan, step_s=step_s, step_ratio=step_s / now_s)


def _around(plans: Sequence[RankedPlan], fastest: RankedPlan, limits: SearchBounds) -> SearchBounds:
    """The degrees of the best plans with their halves and doubles, inside the bounds that were asked."""
    shown = [ranked.plan for ranked in (*plans, fastest)]
    axes: dict[str, IntRange] = {}
    for axis in NEIGHBOUR_AXES:
        asked: IntRange | None = getattr(limits, axis)
        now = {getattr(plan.recipe if axis == "micro_batch_size" else plan.layout, axis) for plan in shown}
        near = {value for degree in now for value in (degree // 2, degree, 2 * degree) if value}
        allowed = sorted(value for value in near if value in now or asked is None or asked.allows(value))
        axes[axis] = IntRange(low=allowed[0], high=allowed[-1], values=tuple(allowed))
    schedules = {plan.layout.schedule for plan in shown}
    if axes["pp"].allows(1) and not limits.needs_pipeline:
        axes["vpp"] = IntRange(low=1, high=axes["vpp"].high, values=tuple(sorted({1, *axes["vpp"].values})))
        schedules.add("1f1b")
    return replace(
        limits,
        tp=axes["tp"],
        cp=axes["cp"],
        pp=axes["pp"],
        vpp=axes["vpp"],
        ep=axes["ep"],
        dp_replicate=axes["dp_replicate"],
        micro_batch_size=axes["micro_batch_size"],
        zero_stage=tuple(sorted({plan.layout.zero_stage for plan in shown})),
        schedule=tuple(sorted(schedules)),
        precision=None,
        max_gpus=None,
        max_predictions=FEW_PREDICTIONS,
    )


def _what_binds(fastest: RankedPlan, changes: Sequence[WhatIf]) -> str:
    """Memory where a little more of it helps; otherwise what takes most of the step besides computing."""
    memory = next((change for change in changes if change.plan.cluster.gpu.id == fastest.plan.cluster.gpu.id), None)
    if memory is not None and memory.step_ratio < 1 - NOTEWORTHY_FRACTION:
        return (
            f"Memory binds: with {memory.change} the fastest plan would take {format_seconds(memory.step_s)} "
            f"({format_percent(1 - memory.step_ratio)} less), as {short_variant(memory.plan)}."
        )
    time = fastest.prediction.time
    wasted = max((entry for entry in time.components if entry.component in WASTED), key=lambda entry: entry.duration_s)
    share = wasted.duration_s / time.step_s
    spent = f"the largest part of the step besides computing is {COMPONENT_WORDS[wasted.component]}"
    return f"Memory does not bind: a little more changes nothing; {spent}, {format_percent(share)} of it."
