"""Changes of a question that may change its answer, each screened by predicting the changed layout: switches that cost
nothing, a batch that GPUs share, the next GPU type, a server more or less, and a dead GPU."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd

from shardwise.attention_kernels import ATTENTION_KERNELS
from shardwise.cluster import Cluster
from shardwise.engines.table import ENGINES
from shardwise.errors import ShardwiseError
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.rules import Changes, apply_changes, find_errors
from shardwise.rules.changes import changes_text
from shardwise.rules.defaults import fill_again
from shardwise.rules.token_batch import leaves_gaps, near_batch, nearest_sequences, on_cluster
from shardwise.search.bounds import SearchBounds
from shardwise.search.clusters import bigger_gpus, with_dead_gpu, with_gpu, with_num_nodes
from shardwise.search.narrow_states import narrow_states
from shardwise.search.one_pass import find
from shardwise.search.records import RankedPlan
from shardwise.step.attention_kernel import attention_call, attention_kernel, engines_kernel

__all__ = [
    "LEAST_GAIN_RATIO",
    "Offer",
    "asked_offers",
    "better_shared_batches",
    "free_offers",
    "rate_ratio",
    "size_offers",
    "type_offers",
]

LEAST_GAIN_RATIO = 1.03
"""Tokens per second: a change that brings less is not worth a line."""
LEAST_ENGINE_RATIO = 1.10
"""Another engine costs work: it has to be so many times as fast as this one with its own switches."""
MAX_TYPES = 8
FEW_PREDICTIONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A changed question, and how fast the recommended layout would be in it."""

    change: str
    """The change as it is typed or said."""
    question: Plan
    rate_ratio: float | None
    """Tokens per second and GPU of the changed layout over those of the recommended plan; ``None`` where the
    recommended layout does not divide what was changed."""
    is_other_batch: bool = False
    """Whether another batch is trained on the same GPUs, which is the first thing to say: the answer hangs on it."""
    is_as_asked: bool = False
    """Whether that batch is the one that was asked for, to the token."""
    is_borderline: bool = False
    """Whether every plan that was found for it is at the edge of the memory."""

    @property
    def gain_ratio(self) -> float:
        """``rate_ratio`` to compare offers by: 0 where the recommended layout cannot be kept."""
        return self.rate_ratio or 0.0

    @property
    def num_gpus(self) -> int:
        """GPUs of the changed cluster."""
        return self.question.cluster.num_gpus


def rate_ratio(plan: Plan, *, step_s: float, now: RankedPlan) -> float:
    """Tokens per second and GPU of a plan over those of the recommended one."""
    rate = plan.tokens_per_step / step_s / plan.cluster.num_gpus
    now_rate = now.plan.tokens_per_step / now.prediction.time.step_s / now.plan.cluster.num_gpus
    return rate / now_rate


def asked_offers(
    question: Plan, now: RankedPlan, *, asked_tokens: float | None, limits: SearchBounds
) -> Iterator[Offer]:
    """The batch that comes closest to the tokens that were asked for, where the question took another that divides
    better and it matters."""
    if asked_tokens is None:
        return
    recipe, num_gpus = question.recipe, question.cluster.num_gpus
    size = nearest_sequences(asked_tokens, seq_len=recipe.seq_len, num_gpus=num_gpus)
    if size != question.global_batch_size:
        for offer in _searched(question, now, (("global_batch_size", size),), limits, least_ratio=0.0):
            if not 1 / LEAST_GAIN_RATIO < offer.gain_ratio < LEAST_GAIN_RATIO:
                yield replace(offer, is_other_batch=True, is_as_asked=True)


def free_offers(question: Plan, now: RankedPlan, *, limits: SearchBounds) -> Iterator[Offer]:
    """Changes of the recipe or the engine that make the recommended plan or its batch faster.

    Args:
        question: what was asked, with its batch; its open fields are those that nobody gave.
        now: the recommended plan.
        limits: the bounds of its search.
    """
    switched = [
        *_changed(question, now, _switches(question, limits), least_ratio=LEAST_GAIN_RATIO),
        *_other_kernel(question, now),
    ]
    yield from switched
    most = max((offer.gain_ratio for offer in switched if offer.question.recipe.compile), default=1.0)
    engines = _changed(question, now, _engines(question), least_ratio=LEAST_ENGINE_RATIO * most)
    yield from sorted(engines, key=lambda offer: -offer.gain_ratio)[:1]
    if not question.recipe.liger_kernels and ENGINES[question.engine].has_liger_kernels:
        yield from _searched(question, now, (("liger_kernels", True),), limits)
    yield from _states_on_the_device(question, now, limits)
    yield from _shared_batch(question, now, limits)


def type_offers(question: Plan, now: RankedPlan) -> Iterator[Offer]:
    """The nearest part of the same make with more memory that is at least as fast, as many of them."""
    cluster = question.cluster
    for gpu in bigger_gpus(cluster.gpu, limit=MAX_TYPES):
        if gpu.memory_bandwidth_bytes_per_s < cluster.gpu.memory_bandwidth_bytes_per_s:
            continue
        other = with_gpu(cluster, gpu)
        if other is not None:
            ratio = _predicted(replace(now.plan, cluster=other), now)
            words = f"{gpu.id} instead of {cluster.gpu.id}"
            yield Offer(change=words, question=replace(question, cluster=other), rate_ratio=ratio)
            return


def size_offers(question: Plan, now: RankedPlan, *, limits: SearchBounds) -> Iterator[Offer]:
    """The cluster with a dead GPU, and with a server less and more.

    Where nobody gave the batch, the one that is assumed for the changed cluster is taken; a batch that was given, and
    that the changed cluster cannot share as well, becomes the nearest one within 10 % that it can.
    """
    for words, cluster in _sizes(question.cluster, limits):
        changed, change = on_cluster(question, cluster), words
        is_open = "global_batch_size" in question.open_fields
        size = changed.global_batch_size if is_open else near_batch(question.global_batch_size, cluster.num_gpus)
        if size != changed.global_batch_size:
            changed = replace(changed, recipe=replace(changed.recipe, global_batch_size=size))
            change = f"{words}, global_batch_size={size}"
        yield Offer(change=change, question=changed, rate_ratio=_on_size(changed, now))


def _changed(question: Plan, now: RankedPlan, changes: Iterable[Changes], *, least_ratio: float) -> Iterator[Offer]:
    """The changes under which the recommended layout is so many times as fast."""
    for change in changes:
        [(name, _)] = change
        changed = fill_again(question, change)
        names = {"compile", name} - {"engine"}
        recipe = replace(now.plan.recipe, **{same: getattr(changed.recipe, same) for same in names})
        ratio = _predicted(replace(now.plan, engine=changed.engine, recipe=recipe), now)
        if ratio is not None and ratio >= least_ratio:
            yield Offer(change=changes_text(change), question=changed, rate_ratio=ratio)


def _other_kernel(question: Plan, now: RankedPlan) -> Sequence[Offer]:
    """The fastest other kernel of attention, if it gains; the engine's own where no other is clearly faster than it."""
    if question.model.attention is None or question.recipe.writes_scores:
        return ()
    call, used, own = attention_call(now.plan), attention_kernel(now.plan), engines_kernel(now.plan)
    names = [name for name, kernel in ATTENTION_KERNELS.items() if name != used and kernel.computes(call)]
    changes: list[Changes] = [(("attention_kernel", name),) for name in sorted(names, key=lambda name: name != own)]
    found = [*_changed(question, now, changes, least_ratio=LEAST_GAIN_RATIO)]
    least = LEAST_GAIN_RATIO * found[0].gain_ratio if found else 0.0
    faster = [offer for offer in found if offer.gain_ratio >= least]
    return sorted(faster, key=lambda offer: -offer.gain_ratio)[:1] or found[:1]


def _switches(question: Plan, limits: SearchBounds) -> Iterator[Changes]:
    """Every change of one switch of the recipe, but for the kernel of attention.

    Eight bits are offered where bf16 was assumed. Whoever gives a precision allows no other: the formats that are
    given are all searched.
    """
    recipe = question.recipe
    if not recipe.compile and ENGINES[question.engine].has_compile_switch:
        yield (("compile", True),)
    if recipe.writes_scores:
        yield (("attention", "flash"),)
    if recipe.overlap_grad_reduce is False:
        yield (("overlap_grad_reduce", True),)
    if recipe.blocking_launches:
        yield (("blocking_launches", False),)
    if limits.precision is None and "precision" in question.open_fields and recipe.precision == "bf16-mixed":
        yield (("precision", "fp8-mixed"),)


def _engines(question: Plan) -> Iterator[Changes]:
    """Every other engine that people can get."""
    for name, engine in ENGINES.items():
        if name != question.engine and engine.is_public:
            yield (("engine", name),)


def _predicted(changed: Plan, now: RankedPlan) -> float | None:
    """Tokens/s per GPU of a changed plan over those of now; ``None`` where it breaks a rule or does not fit."""
    if find_errors(changed):
        return None
    prediction = predict(changed)
    return rate_ratio(changed, step_s=prediction.time.step_s, now=now) if prediction.fits else None


def _shared_batch(question: Plan, now: RankedPlan, limits: SearchBounds) -> Iterator[Offer]:
    """A batch within 10 % that divides better, where its fastest plan trains more tokens a second.

    More of the GPUs share it, or more micro-batches divide the sequences of a rank, where few did.
    """
    size, num_gpus = question.global_batch_size, question.cluster.num_gpus
    near = near_batch(size, num_gpus)
    has_gaps = leaves_gaps(size // now.plan.layout.data_parallel_size)
    if near != size and (has_gaps or gcd(near, num_gpus) > gcd(size, num_gpus)):
        for offer in _searched(question, now, (("global_batch_size", near),), limits):
            yield replace(offer, is_other_batch=True)


def _states_on_the_device(question: Plan, now: RankedPlan, limits: SearchBounds) -> Sequence[Offer]:
    """States of fewer bytes, where those that were assumed move to the host for being too big."""
    is_open = limits.precision is None and "precision" in question.open_fields
    if not (is_open or question.recipe.adapter != "none") or now.plan.recipe.offload == "none":
        return ()
    bounds = replace(limits, offload=("none",))
    offers = (offer for changes in narrow_states(question) for offer in _searched(question, now, changes, bounds))
    return sorted(offers, key=lambda offer: (offer.is_borderline, -offer.gain_ratio))[:1]


def _searched(
    question: Plan,
    now: RankedPlan,
    changes: Changes,
    limits: SearchBounds,
    *,
    least_ratio: float = LEAST_GAIN_RATIO,
) -> Iterator[Offer]:
    """A changed question whose fastest plan trains so many times the tokens a second, found with few predictions."""
    changed = apply_changes(question, changes)
    few = replace(limits, max_predictions=FEW_PREDICTIONS)
    try:
        fitting = find(changed, few, is_brief=True).evaluation.fitting
    except ShardwiseError:  # a pinned micro-batch or layout does not divide another batch
        return
    safe = [found for found in fitting if not found.prediction.memory.is_borderline]
    ratios = [rate_ratio(found.plan, step_s=found.priced_s, now=now) for found in safe or fitting]
    best = (1 + now.price_fraction) * max(ratios, default=0.0)
    if ratios and best >= least_ratio:
        yield Offer(change=changes_text(changes), question=changed, rate_ratio=best, is_borderline=not safe)


def better_shared_batches(plan: Plan) -> tuple[int, ...]:
    """The batches that more GPUs can share, where the plan's own is what keeps data-parallel ranks few.

    One within 10 %, or else those next to it that all GPUs share. It is not the batch where tensor parallelism leaves
    no more ranks, or where the plan has fewer than the batch allows. It is where 24 GPUs get 32 sequences: pipelines or
    context parallelism has to take the factor of 3, as tensor parallelism inside a server cannot.
    """
    layout, size, num_gpus = plan.layout, plan.global_batch_size, plan.cluster.num_gpus
    sharing = gcd(size, num_gpus)
    is_few_anyway = sharing >= layout.world_size // layout.tp or sharing > layout.data_parallel_size
    if is_few_anyway and plan.cluster.node.gpus_per_node % (num_gpus // sharing) == 0:
        return ()
    near = near_batch(size, num_gpus)
    if gcd(near, num_gpus) > sharing:
        return (near,)
    below = size // num_gpus * num_gpus
    return (below, below + num_gpus) if below else ()


def _sizes(cluster: Cluster, limits: SearchBounds) -> Iterator[tuple[str, Cluster]]:
    """The cluster with one GPU less, one server less and one more, each in words; a part of a server has no others."""
    fewer = with_dead_gpu(cluster)
    if fewer is not None:
        yield f"one dead GPU of {cluster.num_gpus:,}", fewer
    if cluster.num_missing_gpus or cluster.num_nodes == 1:
        return
    yield (
        f"{cluster.num_nodes - 1:,} servers instead of {cluster.num_nodes:,}",
        with_num_nodes(cluster, cluster.num_nodes - 1),
    )
    more = with_num_nodes(cluster, cluster.num_nodes + 1)
    if limits.max_gpus is None or more.num_gpus <= limits.max_gpus:
        yield f"{more.num_nodes:,} servers instead of {cluster.num_nodes:,}", more


def _on_size(changed: Plan, now: RankedPlan) -> float | None:
    """The ratio of rates with more or fewer data-parallel ranks; ``None`` where the layout cannot take them."""
    layout, num_gpus = now.plan.layout, changed.cluster.num_gpus
    model_parallel = layout.tp * layout.cp * layout.pp
    if num_gpus % model_parallel:
        return None
    dp = num_gpus // model_parallel
    replicas = layout.dp_replicate if dp % layout.dp_replicate == 0 else 1
    scaled = replace(layout, dp_replicate=replicas, dp_shard=dp // replicas)
    recipe = replace(now.plan.recipe, global_batch_size=changed.recipe.global_batch_size)
    return _predicted(replace(now.plan, cluster=changed.cluster, layout=scaled, recipe=recipe), now)
