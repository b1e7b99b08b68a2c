"""Everything one rank of one pipeline stage computes in a step, with counts."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from shardwise.engines.table import engine_profile
from shardwise.model import LayerSpec
from shardwise.plan import Plan
from shardwise.step.block_operations import block_operations
from shardwise.step.inventory import Operation
from shardwise.step.operation_context import OperationContext, operation_context
from shardwise.step.recomputed_operations import recomputed_operations
from shardwise.step.stage_context import StageContext
from shardwise.step.step_operations import optimizer_operations, sharding_operations
from shardwise.step.table_operations import embedding_operations, head_operations

GroupPart = Literal["blocks", "recomputed blocks", "embedding", "head", "sharding copies", "optimizer"]
"""The part of a stage that a group of operations belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationGroup:
    """Operations that run one after the other, ``count`` times in a step."""

    part: GroupPart
    operations: tuple[Operation, ...]
    count: int


class BlockBook:
    """The operations of every distinct block of a plan, made once however many stages hold it."""

    def __init__(self, plan: Plan) -> None:
        self._recipe = plan.recipe
        self._policy = engine_profile(plan.engine).selective_policy
        self._once: dict[int, tuple[Operation, ...]] = {}
        self._again: dict[int, tuple[Operation, ...]] = {}

    def forward_and_backward(self, layer: LayerSpec, context: OperationContext) -> tuple[Operation, ...]:
        """Operations of one block for one micro-batch, without recomputation."""
        found = self._once.get(id(layer))
        if found is None:
            found = self._once[id(layer)] = block_operations(layer, context, self._recipe)
        return found

    def recomputed(self, layer: LayerSpec, context: OperationContext) -> tuple[Operation, ...]:
        """Operations that run again when the block is recomputed."""
        found = self._again.get(id(layer))
        if found is None:
            once = self.forward_and_backward(layer, context)
            found = recomputed_operations(once, context, layer=layer, recipe=self._recipe, policy=self._policy)
            self._again[id(layer)] = found
        return found

    def owns(self, operations: tuple[Operation, ...]) -> bool:
        """Whether these operations belong to the book, and stay the same for every stage."""
        return any(operations is own for own in (*self._once.values(), *self._again.values()))


def operation_groups(context: StageContext, book: BlockBook) -> tuple[OperationGroup, ...]:
    """Operations of one rank in groups: blocks, what is recomputed, embedding, head, sharding copies, optimizer."""
    operation = operation_context(context)
    num_microbatches = context.rounds
    groups: list[OperationGroup] = []
    for layer, count in _distinct_layers(context):
        once = book.forward_and_backward(layer, operation)
        groups.append(OperationGroup(part="blocks", operations=once, count=count * num_microbatches))
        recomputed = context.num_recomputed(layer)
        if recomputed:
            again = book.recomputed(layer, operation)
            groups.append(
                OperationGroup(part="recomputed blocks", operations=again, count=recomputed * num_microbatches)
            )
    outside: tuple[tuple[GroupPart, Iterator[Operation], int], ...] = (
        ("embedding", embedding_operations(context, operation), num_microbatches),
        ("head", head_operations(context, operation), num_microbatches),
        ("sharding copies", sharding_operations(context, operation), num_microbatches),
        ("optimizer", optimizer_operations(context, operation), 1),
    )
    groups += [OperationGroup(part=part, operations=tuple(found), count=count) for part, found, count in outside]
    return tuple(group for group in groups if group.operations)


def stage_operations(context: StageContext) -> tuple[Operation, ...]:
    """Operations of one rank, each with how often it runs in one optimizer step."""
    groups = operation_groups(context, BlockBook(context.plan))
    return tuple(replace(operation, count=group.count) for group in groups for operation in group.operations)


def _distinct_layers(context: StageContext) -> Iterator[tuple[LayerSpec, int]]:
    """Different blocks of the stage with how many there are, alternating patterns merged."""
    counts: dict[int, int] = {}
    layers: dict[int, LayerSpec] = {}
    for layer, count in context.layer_runs:
        counts[id(layer)] = counts.get(id(layer), 0) + count
        layers[id(layer)] = layer
    for key, layer in layers.items():
        yield layer, counts[key]
