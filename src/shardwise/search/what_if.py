"""The limit of the recommended plan, and changes that would move it: free switches, a batch that GPUs share, more
memory, the next GPU type, a server more or less, and a dead GPU."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from shardwise.cluster import Cluster
from shardwise.errors import ShardwiseError
from shardwise.ledger import TimeComponent
from shardwise.plan import Plan
from shardwise.prediction import Prediction, RunningCost
from shardwise.schedules.table import DEFAULT_SCHEDULE
from shardwise.search.bounds import IntRange, SearchBounds
from shardwise.search.candidates import OFFLOADS
from shardwise.search.clusters import at_most
from shardwise.search.evaluation import safely_fitting
from shardwise.search.offers import (
    LEAST_GAIN_RATIO,
    Offer,
    asked_offers,
    free_offers,
    rate_ratio,
    size_offers,
    type_offers,
)
from shardwise.search.one_pass import find
from shardwise.search.ranking import rank
from shardwise.search.reasons import COMPONENT_WORDS
from shardwise.search.records import RankedPlan, SearchResult
from shardwise.search.search import question_of
from shardwise.search.simplicity import short_variant
from shardwise.search.space import Space
from shardwise.search.targets import meeting
from shardwise.units import GIB, Bytes, Seconds, format_gib, format_percent, format_seconds

__all__ = ["Sensitivity", "WhatIf", "what_if"]

MORE_MEMORY_BYTES: Bytes = 8 * GIB
FEW_PREDICTIONS = 3
MANY_LAYOUTS = 40_000_000
"""A search of more layouts takes over a second."""
MAX_SEARCHES, FEW_SEARCHES = 3, 1
"""Changed questions that are searched, and how many of large spaces: all what-ifs together take two seconds."""
MAX_GAINS = 2
"""Changed questions that gain; what a smaller cluster loses has the searches that are left."""
NOTABLE_LOSS_FRACTION = 0.10
"""A loss per GPU that is no noise: with a server more or less the batch no longer divides."""
NOTEWORTHY_FRACTION = 0.01
OTHER_WORK_FRACTION = 0.02
"""A step of another batch, or of more GPUs, is another amount of work for each of them."""
NEIGHBOUR_AXES = ("tp", "cp", "pp", "vpp", "ep", "dp_replicate", "micro_batch_size")
WASTED: tuple[TimeComponent, ...] = ("exposed_communication", "pipeline_bubble", "recompute", "offload", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A changed question and a plan that answers it.

    The plan is what ``plan`` recommends for the changed question.
    For more memory on every GPU, which no command asks for, it is the fastest plan near the recommended one that fits
    as safely and moves no more to the host.
    """

    change: str
    plan: Plan
    step_s: Seconds
    step_ratio: float
    """Over the recommended plan's step."""
    rate_ratio: float
    """Tokens per second and GPU over the recommended plan's."""
    gpus_ratio: float = 1.0
    """GPUs over those of the recommended plan."""
    is_for_sale: bool = True
    """Whether the changed question can be asked: nobody sells a GPU with a little more memory."""
    is_as_asked: bool = False
    """Whether this is the batch that was asked for, to the token, where the question took one that divides better."""
    running_cost: RunningCost | None = None
    """Dollars on GPUs of another type, or on more of them; ``None`` on the same, or where no price is known."""

    @property
    def has_fewer_gpus(self) -> bool:
        """Whether GPUs are missing: that is no offer, however fast the others are."""
        return self.gpus_ratio < 1

    @property
    def is_shorter(self) -> bool:
        """Whether the step is noticeably shorter than the recommended plan's."""
        return self.step_ratio < 1 - NOTEWORTHY_FRACTION

    @property
    def is_same_work(self) -> bool:
        """Whether as many GPUs train about as many tokens in a step, so that the steps compare."""
        return self.gpus_ratio == 1 and abs(self.rate_ratio * self.step_ratio - 1) < OTHER_WORK_FRACTION


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The resource that limits the recommended plan, and the predicted effect of each change that was tried."""

    binding: str
    """A sentence."""
    changes: tuple[WhatIf, ...]
    """Offers in the order in which they are worth saying, GPUs that are missing, and more memory last."""

    @property
    def memory_binds(self) -> bool:
        """Whether more memory on the same GPUs would make the step shorter."""
        return any(change.is_shorter for change in self.changes if not change.is_for_sale)


def what_if(result: SearchResult, *, limits: SearchBounds) -> Sensitivity | None:
    """The resource that limits the recommended plan of an answer, and what changes gain; ``None`` without a plan.

    Args:
        result: the answer.
        limits: the bounds of the search; what is tried stays inside them.
    """
    if not result.plans:
        return None
    fastest = min((*result.plans, *result.pareto), key=lambda ranked: ranked.prediction.time.step_s)
    now = result.plans[0]
    near = _moving_no_more(_around((now, fastest), limits), now.plan)
    question = _question(result)
    asked = replace(question.recipe, precision=now.plan.recipe.precision, offload="none", activation_offload=False)
    roomier = replace(question, cluster=_with_more_memory(now.plan.cluster), recipe=asked)
    more = _tried(f"{format_gib(MORE_MEMORY_BYTES)} more on every GPU", roomier, now, near)
    chosen = _chosen(result, question, limits)
    changes = [change for _, change in sorted(_answered(chosen, result, limits), key=_worth)]
    return Sensitivity(binding=_what_binds(now, more), changes=(*changes, more))


def _question(result: SearchResult) -> Plan:
    """The question of an answer, also of one that was put together without it."""
    return result.question or result.plans[0].plan


def _chosen(result: SearchResult, question: Plan, limits: SearchBounds) -> Sequence[Offer]:
    """The changed questions that are worth a search: what gains most, a dead GPU, and servers whose number hurts."""
    now, is_large = result.plans[0], result.space.layouts_considered > MANY_LAYOUTS
    if result.question is None or result.objective not in ("step_time", "cost"):
        return ()
    gains = [
        *asked_offers(question, now, asked_tokens=result.asked_tokens, limits=limits),
        *free_offers(question, now, limits=limits),
        *(() if is_large else type_offers(question, now)),
    ]
    sizes = () if is_large else tuple(size_offers(question, now, limits=limits))
    num_gpus = question.cluster.num_gpus
    gains += [size for size in sizes if size.gain_ratio >= LEAST_GAIN_RATIO and size.num_gpus >= num_gpus]
    by_gain = sorted(gains, key=lambda offer: (not offer.is_other_batch, -offer.gain_ratio))
    best = by_gain[: FEW_SEARCHES if is_large else MAX_GAINS]
    others = [size for size in sizes if size not in best]
    losses = [size for size in others[1:] if size.gain_ratio <= 1 - NOTABLE_LOSS_FRACTION]
    return (*best, *others[:1], *losses)[: FEW_SEARCHES if is_large else MAX_SEARCHES]


def _worth(answered: tuple[Offer, WhatIf]) -> tuple[bool, bool, float]:
    """A key by which what is most worth saying comes first."""
    offer, change = answered
    return not offer.is_other_batch, change.has_fewer_gpus, -change.rate_ratio


def _answered(offers: Sequence[Offer], result: SearchResult, limits: SearchBounds) -> Iterator[tuple[Offer, WhatIf]]:
    """Search each changed question, and yield the plan that is recommended for it.

    Where there is none, nothing is looked for that would have one: on a prime number of GPUs that takes a minute.
    """
    now, bounds = result.plans[0], replace(limits, max_gpus=None)
    for offer in offers:
        changed = offer.question
        try:
            cluster = at_most(changed.cluster, limits.max_gpus)
            asked = question_of(model=changed.model, cluster=cluster, recipe=changed.recipe, engine=changed.engine)
            fitting = find(asked, bounds, objective=result.objective).evaluation.fitting
        except ShardwiseError:  # the other part lacks a number format or a degree, so it cannot be compared
            continue
        for best in rank(meeting(fitting, bounds), objective=result.objective, limit=1):
            found = _changed(offer.change, best.plan, best.prediction, now)
            yield offer, replace(found, is_as_asked=offer.is_as_asked)


def _changed(change: str, plan: Plan, prediction: Prediction, now: RankedPlan) -> WhatIf:
    step_s, cluster, asked = prediction.time.step_s, plan.cluster, now.plan.cluster
    is_other = cluster.gpu.id != asked.gpu.id or cluster.num_gpus > asked.num_gpus
    return WhatIf(
        change=change,
        plan=plan,
        step_s=step_s,
        step_ratio=step_s / now.prediction.time.step_s,
        rate_ratio=rate_ratio(plan, step_s=step_s, now=now),
        gpus_ratio=plan.cluster.num_gpus / now.plan.cluster.num_gpus,
        running_cost=prediction.running_cost if is_other else None,
    )


def _with_more_memory(cluster: Cluster) -> Cluster:
    gpu = replace(cluster.gpu, memory_bytes=cluster.gpu.memory_bytes + MORE_MEMORY_BYTES)
    return replace(cluster, node=replace(cluster.node, gpu=gpu))


def _tried(change: str, question: Plan, now: RankedPlan, near: SearchBounds) -> WhatIf:
    """The fastest plan with more memory around the recommended one, which stays where nothing faster is found."""
    fitting = find(question, near, is_brief=True).evaluation.fitting
    if not now.prediction.memory.is_borderline:
        fitting = safely_fitting(fitting, Space(question=question, bounds=near))
    best = next(iter(rank(fitting, objective="step_time", limit=1)), None)
    if best is None or best.prediction.time.step_s > now.prediction.time.step_s:
        found = _changed(change, replace(now.plan, cluster=question.cluster), now.prediction, now)
    else:
        found = _changed(change, best.plan, best.prediction, now)
    return replace(found, is_for_sale=False)


def _moving_no_more(near: SearchBounds, plan: Plan) -> SearchBounds:
    """The bounds without what moves more to the host than a plan does."""
    offered = near.offload or OFFLOADS
    most = OFFLOADS.index(plan.recipe.offload)
    return replace(
        near,
        offload=tuple(name for name in offered if OFFLOADS.index(name) <= most),
        activation_offload=near.activation_offload if plan.recipe.activation_offload else False,
    )


def _around(found: Sequence[RankedPlan], limits: SearchBounds) -> SearchBounds:
    """The degrees of plans with their halves and doubles, inside the bounds that were asked."""
    shown = [ranked.plan for ranked in found]
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
        schedules.add(DEFAULT_SCHEDULE)
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


def _what_binds(now: RankedPlan, memory: WhatIf) -> str:
    """Memory where a little more of it helps; otherwise what takes most of the step besides computing."""
    if memory.is_shorter:
        return (
            f"Memory binds: with {memory.change} a plan as safe would take {format_seconds(memory.step_s)} "
            f"({format_percent(1 - memory.step_ratio)} less), as {short_variant(memory.plan)}."
        )
    time = now.prediction.time
    wasted = max((entry for entry in time.components if entry.component in WASTED), key=lambda entry: entry.duration_s)
    share = wasted.duration_s / time.step_s
    spent = f"the largest part of the step besides computing is {COMPONENT_WORDS[wasted.component]}"
    return (
        "Memory does not bind the recommended plan: a little more changes hardly anything; "
        f"{spent}, {format_percent(share)} of it."
    )
