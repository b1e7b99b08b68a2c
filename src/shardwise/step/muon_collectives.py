"""What our trainer's Muon gathers: a matrix is made orthogonal whole, on every rank that holds a part of it."""

from collections.abc import Iterator
from math import ceil, prod

from shardwise.model import Weight
from shardwise.optimizers import OPTIMIZERS
from shardwise.step.collective_calls import Call, Group, Groups
from shardwise.step.held_weights import adapter_weights
from shardwise.step.inventory import Collective
from shardwise.step.layer_placement import tensor_shards
from shardwise.step.native_engine import is_native_engine, is_replicated
from shardwise.step.stage_context import StageContext
from shardwise.units import Bytes


def muon_collectives(context: StageContext) -> Iterator[Collective]:
    """Gathers of one step, matrix by matrix of every block, router and stacked experts included.

    Nothing runs beside them. What is gathered is the momentum, in the dtype of the weights.

    Source: ``train/optimizer_kinds.py`` (``Muon._update_matrix``), ``train/parameters.py`` (``Trained.whole``).
    """
    recipe = context.plan.recipe
    if not OPTIMIZERS[recipe.optimizer].orthogonalises_matrices or not is_native_engine(context.plan):
        return
    for layer, count in context.layer_runs:
        weights = layer.weights
        if context.has_adapter:
            weights = adapter_weights(layer, rank=recipe.lora_rank, targets=recipe.lora_targets)
        for weight in weights:
            if len(weight.shape) < 2:
                continue
            for group, num_bytes in _gathers(weight, context):
                gather = Call(
                    name="all-gather for Newton-Schulz",
                    kind="all_gather",
                    group=group,
                    num_bytes=num_bytes,
                    phase="optimizer",
                )
                yield from gather.exposed(units=count, rounds=1)


def _gathers(weight: Weight, context: StageContext) -> Iterator[tuple[Group, Bytes]]:
    """Groups in turn, and what each gather makes; rows are padded so that every rank's part is equally long.

    Ranks that divide states cut the rows (or experts) of the part that other ranks left, and are gathered first. Where
    those cut columns they are gathered first instead, of the rows of one rank.
    """
    layout = context.plan.layout
    groups = Groups(layout=layout)
    others = groups.experts if weight.is_expert else groups.tensor
    shards = groups.expert_shards if weight.is_expert and layout.ep > 1 else groups.shards
    num_others = others.size if weight.is_expert else tensor_shards(weight, layout)
    num_shards = 1 if is_replicated(layout) else shards.size
    rows, row_elements = weight.shape[0], prod(weight.shape[1:])
    size = context.states.weight_bytes
    cuts_columns = weight.split == "row" and not weight.is_expert
    local_rows = rows if cuts_columns else ceil(rows / num_others)
    shard_rows = ceil(local_rows / num_shards)
    own = Group(axis=shards.axis, size=num_shards, stride=shards.stride)
    between = Group(axis=others.axis, size=num_others, stride=others.stride)
    if cuts_columns:
        yield between, shard_rows * num_others * ceil(row_elements / num_others) * size
        yield own, num_shards * shard_rows * row_elements * size
    else:
        yield own, num_shards * shard_rows * row_elements * size
        yield between, num_others * local_rows * row_elements * size
