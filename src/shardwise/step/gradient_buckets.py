"""Which gradients are reduced together where they are not reduced unit by unit, in the order backward makes them.

A bucket takes whole gradients, last parameter first, and is complete when the last of them is there. torch and Megatron
close a bucket with the gradient that fills it, DeepSpeed before the one that would not fit.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from shardwise.model import LayerSpec, Weight
from shardwise.step.collective_calls import Group, Groups
from shardwise.step.held_weights import adapter_weights
from shardwise.step.layer_placement import Chunk, local_num_params
from shardwise.step.reduction_policy import is_torch, overlaps_reductions
from shardwise.step.stage_context import StageContext
from shardwise.units import MIB, Bytes

FIRST_BUCKET_BYTES: Bytes = MIB
"""torch ``dist._DEFAULT_FIRST_BUCKET_BYTES``: a small first bucket starts reducing early (``distributed_c10d.py``)."""
MEGATRON_BUCKET_PARAMS = 40_000_000
MEGATRON_BUCKET_PARAMS_PER_RANK = 1_000_000
"""Megatron-LM ``core/distributed/distributed_data_parallel.py``: max(40M, 1M times the data-parallel ranks)."""


MEGATRON_FUSED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "fc1", "up_proj": "fc1"}
"""Matrices that are one parameter in Megatron-LM (``linear_qkv``, ``linear_fc1``)."""


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A point of a stage's backward pass."""

    index: int
    """Number of the unit: 0 is the head, then come the blocks as backward runs them, then the embedding."""
    fraction: float
    """Share of the unit's gradient elements that are there."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced in one call."""

    elements: int
    complete: Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketedGradients:
    """All gradients of a stage that are divided over one group, in buckets."""

    name: str
    shards: Group
    buckets: tuple[Bucket, ...]
    """The buckets in the order they are complete."""

    @property
    def elements(self) -> int:
        """Elements of all buckets."""
        return sum(bucket.elements for bucket in self.buckets)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRule:
    """When a bucket is full, in elements."""

    num_first_elements: float
    elements: float
    may_exceed: bool
    """Whether the gradient that fills a bucket is its last, and not the first of the next one."""

    def sizes(self, gradients: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Number of gradients and elements of every bucket.

        Source: torch ``reducer.cpp`` ``compute_bucket_assignment_by_size``; Megatron-LM ``param_and_grad_buffer.py``
            ``_compute_default_per_buffer_param_layout``; DeepSpeed ``runtime/zero/stage_1_and_2.py``
            ``reduce_independent_p_g_buckets_and_remove_grads``.

        >>> list(BucketRule(num_first_elements=2, elements=5, may_exceed=True).sizes([1, 2, 4, 4, 9, 1]))
        [(2, 3), (2, 8), (1, 9), (1, 1)]
        >>> list(BucketRule(num_first_elements=5, elements=5, may_exceed=False).sizes([1, 2, 4, 4, 9, 1]))
        [(2, 3), (1, 4), (1, 4), (1, 9), (1, 1)]
        """
        limit, count, total = self.num_first_elements, 0, 0
        for elements in gradients:
            if not self.may_exceed and count and total + elements > limit:
                yield count, total
                limit, count, total = self.elements, 0, 0
            count, total = count + 1, total + elements
            if self.may_exceed and total >= limit:
                yield count, total
                limit, count, total = self.elements, 0, 0
        if count:
            yield count, total


@dataclass(frozen=True, slots=True)
class _Gradient:
    elements: int
    complete: Moment
    is_expert: bool


def bucketed_gradients(context: StageContext) -> tuple[BucketedGradients, ...]:
    """Gradients of a stage in buckets, dense and routed apart when their groups differ. Chunks share no bucket."""
    groups = Groups(layout=context.plan.layout)
    has_own_group = groups.expert_shards.size != groups.shards.size
    buckets: dict[bool, list[Bucket]] = {False: [], True: []}
    for index, gradients in _chunks(context):
        rule = _rule(context, is_first=context.stage.index == 0 and index == 0)
        for is_expert in (False, True):
            own = [one for one in gradients if (one.is_expert and has_own_group) is is_expert]
            buckets[is_expert] += _filled(own, rule)
    return tuple(
        BucketedGradients(name=name, shards=shards, buckets=tuple(buckets[is_expert]))
        for is_expert, name, shards in (
            (False, "gradients", groups.shards),
            (True, "expert gradients", groups.expert_shards),
        )
        if buckets[is_expert]
    )


def _filled(gradients: Sequence[_Gradient], rule: BucketRule) -> Iterator[Bucket]:
    position = 0
    for count, elements in rule.sizes(one.elements for one in gradients):
        position += count
        yield Bucket(elements, gradients[position - 1].complete)


def _rule(context: StageContext, *, is_first: bool) -> BucketRule:
    """The engine's buckets; Megatron cuts the first chunk of the first stage only, which nothing else hides."""
    profile, states = context.profile, context.states
    if profile.sharding == "megatron":
        is_cut = is_first and overlaps_reductions(context.plan)
        ranks = context.plan.layout.data_parallel_size
        params = max(MEGATRON_BUCKET_PARAMS, MEGATRON_BUCKET_PARAMS_PER_RANK * ranks)
        limit = params if is_cut else inf
        return BucketRule(num_first_elements=limit, elements=limit, may_exceed=True)
    if is_torch(context.plan):
        return BucketRule(
            num_first_elements=FIRST_BUCKET_BYTES / states.gradient_bytes,
            elements=profile.bucket.elements(states.gradient_bytes),
            may_exceed=True,
        )
    limit = profile.bucket.elements(states.reduce_bytes)
    return BucketRule(num_first_elements=limit, elements=limit, may_exceed=False)


def _chunks(context: StageContext) -> Iterator[tuple[int, list[_Gradient]]]:
    """The gradients of every chunk in the order backward makes them, the last chunk first."""
    unit = 1
    num_layers = context.stage.num_layers
    for index, chunk in reversed(tuple(enumerate(context.stage.chunks))):
        found = list(_head(context, chunk))
        for layer, count in reversed(chunk.layer_runs):
            of_layer = _of_weights(context, _trained(layer, context))
            for _ in range(count):
                found += [_Gradient(size, Moment(unit, share), is_expert) for size, share, is_expert in of_layer]
                unit += 1
        found += _embedding(context, chunk, unit=num_layers + 1)
        yield index, found


def _trained(layer: LayerSpec, context: StageContext) -> tuple[Weight, ...]:
    recipe = context.plan.recipe
    if not context.has_adapter:
        return _as_executed(layer.weights)
    return adapter_weights(layer, rank=recipe.lora_rank, targets=recipe.lora_targets)


def _as_executed(weights: Sequence[Weight]) -> tuple[Weight, ...]:
    """A block's first norm before everything, its other norms between the mixer and what follows it."""

    def module_of(weight: Weight) -> str:
        return weight.name.partition(".")[0]

    modules = {module_of(weight) for weight in weights if weight.role == "norm" and weight.name.count(".") == 1}
    norms = [weight for weight in weights if module_of(weight) in modules]
    others = [weight for weight in weights if module_of(weight) not in modules]
    first = [weight for weight in norms if module_of(weight) == module_of(norms[0])]
    mixer = [weight for weight in others if module_of(weight) == module_of(others[0])]
    return (*first, *mixer, *norms[len(first) :], *others[len(mixer) :])


def _head(context: StageContext, chunk: Chunk) -> Iterator[_Gradient]:
    if not chunk.has_head or context.has_adapter:
        return
    model = context.plan.model
    weights = model.final_weights + model.head_weights
    if model.tie_word_embeddings and not context.stage.has_embedding:
        weights = tuple(weight for weight in model.embedding_weights if weight.split == "vocab") + weights
    for size, share, _ in _of_weights(context, weights):
        yield _Gradient(size, Moment(0, share), False)


def _embedding(context: StageContext, chunk: Chunk, *, unit: int) -> list[_Gradient]:
    if not chunk.has_embedding or context.has_adapter:
        return []
    model = context.plan.model
    found = _of_weights(context, model.embedding_weights + model.side_weights)
    return [_Gradient(size, Moment(unit, 1.0), False) for size, _, _ in found]


def _of_weights(context: StageContext, weights: Sequence[Weight]) -> list[tuple[int, float, bool]]:
    """Elements of every gradient of a unit, last parameter first, and the share of the unit that is done with it."""
    layout, fuses = context.plan.layout, context.profile.sharding == "megatron"
    sizes: dict[str, tuple[int, bool]] = {}
    for weight in reversed(weights):
        name = _fused(weight.name) if fuses else weight.name
        before, _ = sizes.get(name, (0, False))
        sizes[name] = (before + local_num_params(weight, layout), weight.is_expert)
    total, done, found = sum(size for size, _ in sizes.values()), 0, []
    for size, is_expert in sizes.values():
        done += size
        found.append((size, done / total, is_expert))
    return found


def _fused(name: str) -> str:
    """The name that the matrices of one of Megatron's parameters share."""
    return ".".join(MEGATRON_FUSED.get(part, part) for part in name.split("."))
