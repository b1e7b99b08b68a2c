"""FSDP2's collectives in our own trainer, unit by unit: each block, the token table, the head, and all the rest."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.model import Weight
from shardwise.step.collective_calls import Call, Group, Groups
from shardwise.step.held_weights import Division, adapter_weights, hold
from shardwise.step.inventory import Axis, Collective
from shardwise.step.native_engine import (
    frees_after_forward,
    gathers_every_micro_batch,
    is_replicated,
    reduces_every_micro_batch,
)
from shardwise.step.stage_context import StageContext, Unit
from shardwise.step.states import QUANTISED_BYTES
from shardwise.units import Bytes

TABLES = "embedding and head"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnUnit:
    """Units of FSDP2 that are equal, ``count`` of them."""

    name: str
    gathered_bytes: Bytes
    """Bytes of one unit, padded so that every rank's shard is equally long."""
    num_trained: int
    """Elements that get gradients, padded likewise."""
    shards: Group
    count: int
    num_gathered_again: int = 0
    """Number of these units that are gathered again in backward."""
    is_gathered_again_once: bool = False
    """Whether they are gathered again once a step, and not in every micro-batch."""


def own_collectives(context: StageContext) -> Iterator[Collective]:
    """Gathers and reductions of one step of a stage, unit by unit.

    Source: ``train/data_parallel.py``; torch ``distributed/fsdp/_fully_shard``.
    """
    layout, rounds = context.plan.layout, context.plan.num_microbatches
    gathers = rounds if gathers_every_micro_batch(layout=layout, recipe=context.plan.recipe) else 1
    reductions = rounds if reduces_every_micro_batch(layout) else 1
    for position, unit in enumerate(_units(context)):
        gather = Call(
            name=f"all-gather {unit.name}",
            kind="all_gather",
            group=unit.shards,
            num_bytes=unit.gathered_bytes,
            phase="forward",
        )
        yield from (gather.hidden_but_one if position == 0 else gather.hidden)(units=unit.count, rounds=gathers)
        size = min(unit.shards.size, layout.reshard_size or unit.shards.size)
        again = replace(gather, phase="backward", group=replace(unit.shards, size=size))
        yield from again.hidden(units=unit.num_gathered_again, rounds=1 if unit.is_gathered_again_once else gathers)
        yield from _reductions(unit, context, is_last=position == 0, rounds=reductions)


def _reductions(unit: OwnUnit, context: StageContext, *, is_last: bool, rounds: int) -> Iterator[Collective]:
    """Reductions of one unit: its shards are summed over replicas once a step, whole gradients over all copies."""
    num_bytes = unit.num_trained * context.states.reduce_bytes
    scatter = Call(
        name=f"reduce-scatter {unit.name}",
        kind="reduce_scatter",
        group=unit.shards,
        num_bytes=num_bytes,
        phase="backward",
    )
    if context.exchanges_gradients:
        made = unit.num_trained * context.states.compute_bytes
        scatter = replace(scatter, name=f"exchange {unit.name}", kind="all_to_all", num_bytes=made)
    yield from (scatter.hidden_but_one if is_last else scatter.hidden)(units=unit.count, rounds=rounds)
    total = Call(
        name=f"all-reduce {unit.name} over replicas",
        kind="all_reduce",
        group=_copies(context) if is_replicated(context.plan.layout) else Groups(layout=context.plan.layout).replicas,
        num_bytes=num_bytes // unit.shards.size,
        phase="backward",
    )
    yield from (total.hidden_but_one if is_last else total.hidden)(units=unit.count, rounds=1)


def _copies(context: StageContext) -> Group:
    """Every rank that runs the same part of the model on other tokens."""
    layout = context.plan.layout
    shards = Groups(layout=layout).shards
    axis: Axis = "dp_replicate" if layout.dp_replicate > 1 else "dp_shard"
    return Group(axis=axis, size=layout.dp_replicate * shards.size, stride=shards.stride)


def _units(context: StageContext) -> Iterator[OwnUnit]:
    """The rest of the model first, which is gathered first and reduced last; then the tables, then the blocks."""
    layout, model, stage = context.plan.layout, context.plan.model, context.stage
    dense = _shards(context)
    frees = frees_after_forward(layout=layout, recipe=context.plan.recipe)
    is_whole = model.tie_word_embeddings and stage.has_embedding
    rest = (model.final_weights if stage.has_head else ()) + (model.side_weights if stage.has_embedding else ())
    if is_whole:
        rest += model.embedding_weights
    yield _table(rest, context)
    is_gathered = context.vocabulary_ranks == 1
    if stage.has_embedding and not is_whole and is_gathered:
        # Where it is frozen the first block asks for it ahead, and with no gradient to pass it stays for the step.
        yield _table(model.embedding_weights, context, num_gathered_again=int(frees))
    if stage.has_head and model.head_weights and is_gathered:
        yield _table(model.head_weights, context)
    blocks = [unit for unit in context.units if unit.is_block]
    kept = {chunk_end.run for chunk_end in blocks[-1:]}
    for unit in blocks:
        again = unit.count - (unit.run in kept) if frees else 0
        yield from _of_block(unit, context, dense, again)


def _of_block(unit: Unit, context: StageContext, dense: Group, again: int) -> Iterator[OwnUnit]:
    """A block's experts are a unit of their own where expert parallelism divides them."""
    layer, _ = context.layer_runs[unit.run]
    if context.plan.layout.ep == 1:
        yield _block(unit, unit.name, layer.weights, context, dense, again)
        return
    own = tuple(weight for weight in layer.weights if not weight.is_expert)
    routed = tuple(weight for weight in layer.weights if weight.is_expert)
    groups = (
        (own, dense, unit.name),
        (routed, Groups(layout=context.plan.layout).expert_shards, f"{unit.name} experts"),
    )
    for weights, shards, name in groups:
        if weights:
            yield _block(unit, name, weights, context, shards, again)


def _table(weights: tuple[Weight, ...], context: StageContext, *, num_gathered_again: int = 0) -> OwnUnit:
    elements = _padded(weights, context)
    return OwnUnit(
        name=TABLES,
        gathered_bytes=elements * context.states.compute_bytes,
        num_trained=0 if context.has_adapter else elements,
        shards=_shards(context),
        count=1,
        num_gathered_again=num_gathered_again,
        is_gathered_again_once=context.has_adapter,
    )


def _block(
    unit: Unit, name: str, weights: tuple[Weight, ...], context: StageContext, shards: Group, again: int
) -> OwnUnit:
    """A block's own weights with their adapters, or its experts, which have none."""
    base = _padded(weights, context)
    recipe, layer = context.plan.recipe, context.layer_runs[unit.run][0]
    added = 0
    if context.has_adapter and not all(weight.is_expert for weight in weights):
        added = _padded(adapter_weights(layer, rank=recipe.lora_rank, targets=recipe.lora_targets), context)
    frozen = base * context.states.compute_bytes
    if recipe.adapter == "qlora":
        frozen = round(base * QUANTISED_BYTES)
    return OwnUnit(
        name=name,
        gathered_bytes=frozen + added * context.states.compute_bytes,
        num_trained=added if context.has_adapter else base,
        shards=shards,
        count=unit.count,
        num_gathered_again=again,
    )


def _shards(context: StageContext) -> Group:
    shards = Groups(layout=context.plan.layout).shards
    return replace(shards, size=1) if is_replicated(context.plan.layout) else shards


def _padded(weights: tuple[Weight, ...], context: StageContext) -> int:
    """Elements of all ranks' shards, each as long as the longest."""
    layout = context.plan.layout
    if not weights:
        return 0
    held = hold(weights, Division.of(layout), is_sharded_by_tensor=True)
    if is_replicated(layout):
        return held.full
    return held.dense_shard * layout.state_shard_size + held.expert_shard * layout.expert_state_shard_size
