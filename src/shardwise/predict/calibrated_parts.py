"""The blocks and tables that a calibration timed, as the inventory lists their operations."""

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.calibration import BlockPoint, TablesPoint
from shardwise.cluster import Cluster
from shardwise.families.build import build_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Precision, Recipe
from shardwise.step.inventory import Operation
from shardwise.step.layer_placement import pipeline_stages
from shardwise.step.operations import BlockBook, GroupPart, operation_groups
from shardwise.step.stage_context import StageContext

PRECISIONS: Mapping[str, Precision] = {"bf16": "bf16", "fp32": "fp32"}
"""Precision in which the native engine's blocks compute when they hold weights of a dtype."""
TIMED_HEAD_DIM = 64
"""Head dim of the model around timed tables, of which no block is timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedPart:
    """A model of one block with what is computed for one micro-batch."""

    plan: Plan
    forward_and_backward: tuple[Operation, ...]
    """Operations of the block in both passes."""
    tables: tuple[Operation, ...]
    """Operations of the embedding, the head and the loss."""
    copies: tuple[Operation, ...]
    """Copies that gathering adds around the block."""


def block_of(point: BlockPoint, cluster: Cluster) -> TimedPart:
    """The model and operations of a block that was timed."""
    fields = {
        "hidden_size": point.hidden_size,
        "intermediate_size": point.intermediate_size,
        "num_attention_heads": point.num_attention_heads,
        "num_key_value_heads": point.num_key_value_heads,
        "head_dim": point.head_dim,
        "vocab_size": point.head_dim,
    }
    layout = Layout(dp_shard=2, zero_stage=3) if point.is_sharded else Layout(zero_stage=0)
    recipe = Recipe(
        seq_len=point.seq_len,
        micro_batch_size=point.num_sequences,
        global_batch_size=point.num_sequences * layout.data_parallel_size,
        precision=PRECISIONS[point.dtype],
        compile=point.is_compiled,
    )
    return _timed(fields, recipe, layout, cluster)


def tables_of(point: TablesPoint, cluster: Cluster) -> TimedPart:
    """The model and operations of tables that were timed."""
    fields = {
        "hidden_size": point.hidden_size,
        "intermediate_size": point.hidden_size,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": TIMED_HEAD_DIM,
        "vocab_size": point.vocab_size,
    }
    recipe = Recipe(
        seq_len=point.num_tokens,
        micro_batch_size=1,
        global_batch_size=1,
        precision=PRECISIONS[point.dtype],
        compile=False,
    )
    return _timed(fields, recipe, Layout(zero_stage=0), cluster)


def _timed(fields: Mapping[str, int], recipe: Recipe, layout: Layout, cluster: Cluster) -> TimedPart:
    model = build_model({"model_type": "llama", "num_hidden_layers": 1, "hidden_act": "silu", **fields})
    plan = Plan(model=model, cluster=cluster, recipe=recipe, layout=layout)
    (stage,) = pipeline_stages(model=model, layout=layout)
    groups = operation_groups(StageContext(plan=plan, stage=stage), BlockBook(plan))

    def of_parts(*parts: GroupPart) -> tuple[Operation, ...]:
        return tuple(operation for group in groups if group.part in parts for operation in group.operations)

    return TimedPart(
        plan=plan,
        forward_and_backward=of_parts("blocks"),
        tables=of_parts("embedding", "head"),
        copies=of_parts("sharding copies"),
    )
