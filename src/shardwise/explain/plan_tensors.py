"""Tensors that a plan may ask the device for, each with the product of sizes that gives its bytes.

Wider than the inventory: it also holds what a *different* implementation of the same plan would allocate (scores of
unfused attention, logits gathered over tp, whole flat buffers), because that is what out-of-memory messages are about.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Literal

from shardwise.engines.table import engine_profile
from shardwise.layout import Layout
from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, ModelSpec, MoeSpec, Weight
from shardwise.plan import Plan
from shardwise.step.gradient_buckets import bucketed_gradients
from shardwise.step.layer_placement import local_num_params, pipeline_stages
from shardwise.step.native_engine import is_native_engine
from shardwise.step.stage_context import StageContext
from shardwise.units import Bytes

__all__ = ["ELEMENT_DTYPES", "PlanTensor", "TensorGroup", "plan_tensors"]

TensorGroup = Literal[
    "logits", "attention-scores", "activation", "weight", "gathered", "gradient", "optimizer", "flat", "bucket", "moe"
]
ELEMENT_DTYPES = ((2, "bf16"), (4, "fp32"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTensor:
    """One tensor a rank of the plan may allocate."""

    name: str
    group: TensorGroup
    expression: str
    """The product, such as ``micro_batch_size 16 x heads 32 x seq_len 4096 x 4096 x 4 B (fp32)``."""
    num_bytes: Bytes
    fix: str
    is_made: bool = True
    """Whether the plan makes it where it is carried out as it was predicted."""


def plan_tensors(plan: Plan) -> tuple[PlanTensor, ...]:
    """Every tensor of the plan that is worth recognising, duplicates by size and name removed."""
    seen: dict[tuple[str, int], PlanTensor] = {}
    for tensor in _all_tensors(plan):
        if tensor.num_bytes > 0:
            seen.setdefault((tensor.name, tensor.num_bytes), tensor)
    return tuple(seen.values())


def _all_tensors(plan: Plan) -> Iterator[PlanTensor]:
    yield from _logits(plan)
    yield from _attention_scores(plan)
    yield from _activations(plan)
    yield from _weights(plan)
    yield from _units(plan)
    yield from _flat_buffers(plan)
    yield from _buckets(plan)


def _local_seq_len(plan: Plan) -> int:
    return ceil(plan.recipe.seq_len / plan.layout.cp)


def _tokens(plan: Plan) -> int:
    return plan.recipe.micro_batch_size * _local_seq_len(plan)


def _batch_text(plan: Plan) -> str:
    cp = f" / cp {plan.layout.cp}" if plan.layout.cp > 1 else ""
    return f"micro_batch_size {plan.recipe.micro_batch_size} x seq_len {plan.recipe.seq_len}{cp}"


def _logits(plan: Plan) -> Iterator[PlanTensor]:
    if not plan.model.has_head:
        return
    vocab, tp, chunks = plan.model.vocab_size, plan.layout.tp, plan.recipe.loss_chunks
    divides = ", or divide the vocabulary over tp" if plan.cluster.num_gpus > 1 and tp == 1 else ""
    whole = "logits" if tp == 1 else "logits gathered over tp"
    shapes = {(whole, 1, 1), ("logits divided over tp", tp, 1), ("one chunk of the logits", tp, chunks)}
    for name, shards, pieces in sorted(shapes):
        if (shards == 1 and "divided" in name) or (pieces == 1 and "chunk" in name):
            continue
        divided = (f" / tp {shards}" if shards > 1 else "") + (f" / loss_chunks {pieces}" if pieces > 1 else "")
        for element_bytes, dtype in ELEMENT_DTYPES:
            yield PlanTensor(
                name=f"{name}, {dtype}",
                group="logits",
                expression=f"{_batch_text(plan)} x vocab_size {vocab}{divided} x {element_bytes} B",
                num_bytes=ceil(_tokens(plan) / pieces) * ceil(vocab / shards) * element_bytes,
                fix="the plan divides the vocabulary over tp: find what gathers the logits, such as a loss or an "
                "evaluation that is not vocabulary-parallel"
                if name == whole and tp > 1
                else f"compute the loss in chunks (loss_chunks), or use a fused cross-entropy{divides}",
                is_made=name != whole or tp == 1,
            )


def _attention_scores(plan: Plan) -> Iterator[PlanTensor]:
    attention = plan.model.attention
    if attention is None:
        return
    heads = ceil(attention.num_attention_heads / plan.layout.tp)
    rows, columns, batch = _local_seq_len(plan), plan.recipe.seq_len, plan.recipe.micro_batch_size
    fix = "use flash (fused) attention, which never stores the scores, or a smaller micro_batch_size"
    for element_bytes, dtype in ELEMENT_DTYPES:
        yield PlanTensor(
            name=f"attention scores, {dtype}",
            group="attention-scores",
            expression=f"micro_batch_size {batch} x heads {heads} x seq_len {rows} x {columns} x {element_bytes} B",
            num_bytes=batch * heads * rows * columns * element_bytes,
            fix=fix,
        )
        yield PlanTensor(
            name=f"attention mask, {dtype}",
            group="attention-scores",
            expression=f"micro_batch_size {batch} x seq_len {rows} x {columns} x {element_bytes} B",
            num_bytes=batch * rows * columns * element_bytes,
            fix="let the attention kernel apply the causal mask itself instead of passing a mask tensor",
        )


def _widths(model: ModelSpec, layout: Layout) -> Iterator[tuple[str, int, TensorGroup]]:
    """Features per token of the tensors inside a block, on one rank."""
    yield "residual stream", model.hidden_size, "activation"
    if layout.sequence_parallel and layout.tp > 1:
        yield "residual stream divided over tp", ceil(model.hidden_size / layout.tp), "activation"
    for layer, _ in model.layer_runs:
        yield from _layer_widths(layer, layout, model.hidden_size)


def _layer_widths(layer: LayerSpec, layout: Layout, hidden_size: int) -> Iterator[tuple[str, int, TensorGroup]]:
    mixer, feed_forward = layer.mixer, layer.feed_forward
    if isinstance(mixer, AttentionSpec):
        query = ceil(mixer.num_attention_heads / layout.tp) * mixer.head_dim
        key = ceil(mixer.num_key_value_heads / layout.tp) * mixer.head_dim
        yield "queries", query, "activation"
        yield "keys or values", key, "activation"
        yield "queries, keys and values in one", query + 2 * key, "activation"
    if isinstance(feed_forward, DenseSpec):
        width = ceil(feed_forward.intermediate_size / layout.tp)
        yield "feed-forward hidden state", width, "activation"
        if feed_forward.is_gated:
            yield "feed-forward gate and up in one", 2 * width, "activation"
    if isinstance(feed_forward, MoeSpec):
        routed = feed_forward.num_experts_per_tok
        yield f"tokens dispatched to {routed} experts", routed * hidden_size, "moe"
        yield "expert hidden states", routed * ceil(feed_forward.moe_intermediate_size / layout.expert_tp), "moe"


def _activations(plan: Plan) -> Iterator[PlanTensor]:
    tokens = _tokens(plan)
    for name, width, group in _widths(plan.model, plan.layout):
        for element_bytes, dtype in ELEMENT_DTYPES:
            yield PlanTensor(
                name=f"{name}, {dtype}",
                group=group,
                expression=f"{_batch_text(plan)} x {width} features x {element_bytes} B",
                num_bytes=tokens * width * element_bytes,
                fix="a smaller micro_batch_size, recompute=full, or cp / sequence_parallel to divide the tokens",
            )


def _weights(plan: Plan) -> Iterator[PlanTensor]:
    model, layout = plan.model, plan.layout
    outside = model.embedding_weights + model.final_weights + model.head_weights
    inside = tuple(weight for layer, _ in model.layer_runs for weight in layer.weights)
    for weight in outside + inside:
        if len(weight.shape) > 1:
            yield from _weight_tensors(weight, layout)


def _weight_tensors(weight: Weight, layout: Layout) -> Iterator[PlanTensor]:
    local = local_num_params(weight, layout)
    shape = " x ".join(str(size) for size in weight.shape)
    divided = f" divided to {local} elements" if local != weight.num_params else ""
    for element_bytes, dtype in ELEMENT_DTYPES:
        yield PlanTensor(
            name=f"{weight.name} (weight, gradient or Adam moment), {dtype}",
            group="weight",
            expression=f"{shape}{divided} x {element_bytes} B",
            num_bytes=local * element_bytes,
            fix="divide the states over more GPUs: a higher zero_stage, more dp_shard, or tp",
        )


def _units(plan: Plan) -> Iterator[PlanTensor]:
    """The gathered parameters and whole gradients of each FSDP unit; on one rank FSDP flattens and casts units, too."""
    layout, shards = plan.layout, plan.layout.state_shard_size
    is_wrapped_alone = layout.world_size == 1 and engine_profile(plan.engine).is_torch and not is_native_engine(plan)
    if not is_wrapped_alone and (shards == 1 or layout.zero_stage < 3):
        return
    units: Counter[tuple[bool, int]] = Counter()
    for unit in (unit for context in _stages(plan) for unit in context.held_units):
        units[unit.is_block, unit.base.full] += unit.count
    for (is_block, params), count in units.items():
        name = f"one block ({count} alike)" if is_block else "embedding, final norm and head"
        padded = ceil(params / shards) * shards
        for element_bytes, dtype in ELEMENT_DTYPES:
            group: TensorGroup = "gathered" if element_bytes == 2 else "gradient"
            what = "gathered parameters" if element_bytes == 2 else "gradients before reduce-scatter"
            yield PlanTensor(
                name=f"{what} of {name}, {dtype}",
                group=group,
                expression=f"{padded} parameters x {element_bytes} B",
                num_bytes=padded * element_bytes,
                fix="shard smaller units (wrap embedding and head on their own), or divide them over tp",
            )


def _stages(plan: Plan) -> tuple[StageContext, ...]:
    return tuple(
        StageContext(plan=plan, stage=stage) for stage in pipeline_stages(model=plan.model, layout=plan.layout)
    )


def _flat_buffers(plan: Plan) -> Iterator[PlanTensor]:
    """Buffers that hold all states of one kind: Megatron's gradients, DeepSpeed's and FSDP1's flat partitions."""
    shards = plan.layout.state_shard_size
    held = {sum(unit.base.full * unit.count for unit in context.held_units) for context in _stages(plan)}
    for params in sorted(held):
        for element_bytes, dtype in ELEMENT_DTYPES:
            yield PlanTensor(
                name=f"all parameters or gradients of a rank in one buffer, {dtype}",
                group="flat",
                expression=f"{params} parameters x {element_bytes} B",
                num_bytes=params * element_bytes,
                fix="divide the states over more GPUs: a higher zero_stage, more dp_shard, tp or pp",
            )
            if shards > 1:
                yield PlanTensor(
                    name=f"one rank's share of all states of a kind (master weights, moments), {dtype}",
                    group="flat",
                    expression=f"{params} parameters / {shards} ranks x {element_bytes} B",
                    num_bytes=ceil(params / shards) * element_bytes,
                    fix="more dp_shard, an 8-bit optimizer, or offload=optimizer",
                )


def _buckets(plan: Plan) -> Iterator[PlanTensor]:
    """Gradients that are reduced together, where the engine allocates a buffer for them."""
    for context in _stages(plan):
        profile, states = context.profile, context.states
        element_bytes = states.gradient_bytes if profile.is_torch else states.reduce_bytes
        views = ", or set gradient_as_bucket_view=True" if profile.ddp_copies_gradients else ""
        for elements in sorted(_bucket_elements(context)):
            yield PlanTensor(
                name="bucket of gradients",
                group="bucket",
                expression=f"{elements} elements x {element_bytes} B",
                num_bytes=elements * element_bytes,
                fix=f"lower {profile.bucket.option}{views}",
            )


def _bucket_elements(context: StageContext) -> set[int]:
    bucket = context.profile.bucket
    if context.is_distributed_data_parallel:
        return {one.elements for gradients in bucketed_gradients(context) for one in gradients.buckets}
    if context.profile.is_torch or not bucket.option:
        return set()
    trained = sum(context.trained(unit).full * unit.count for unit in context.held_units)
    return {min(trained, int(bucket.elements(context.states.reduce_bytes)))}
