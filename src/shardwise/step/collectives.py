"""Everything one rank of one pipeline stage communicates in a step: kind, payload, group, count, phase."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from shardwise.layout import Layout
from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, MoeSpec, Weight
from shardwise.recipe import Recipe, RecomputeModule
from shardwise.schedules.table import SCHEDULE_KINDS
from shardwise.step.collective_calls import Call, Group, Groups, as_issued
from shardwise.step.data_parallel_collectives import data_parallel_collectives
from shardwise.step.expert_exchange import expert_choice, expert_exchange
from shardwise.step.expert_routing import imbalance_ratio
from shardwise.step.held_weights import adapter_weights
from shardwise.step.inventory import Axis, Collective, CollectiveKind, OperationPhase
from shardwise.step.layer_placement import chunk_in_model, chunk_owner, local_num_params, num_chunks
from shardwise.step.muon_collectives import muon_collectives
from shardwise.step.native_engine import SUMS_BYTES, is_native_engine, is_replicated
from shardwise.step.operation_context import gathered_element_bytes
from shardwise.step.recomputed_operations import unread_product
from shardwise.step.reduction_policy import needs_norm
from shardwise.step.stage_context import StageContext
from shardwise.step.token_collectives import LOSS_REDUCTIONS, token_collectives
from shardwise.units import Bytes

RING_BACKWARD_RATIO = 2
"""The backward of ring attention passes keys, values and their gradients."""
FP32_BYTES = 4
SCALAR_BYTES = 4
COMMUNICATING: frozenset[RecomputeModule] = frozenset(("mlp", "moe", "shared_experts"))
"""Modules of selective recomputation with collectives inside."""
COUNTS = "expert counts"
"""The name of the exchange that tells ranks how many rows each of their experts gets."""
COUNT_BYTES = 8
"""Bytes of the int64 by which ranks tell each other how many rows each of their experts gets."""


def stage_collectives(context: StageContext) -> tuple[Collective, ...]:
    """Collectives of one rank of a stage, each with how often it is called in one optimizer step."""
    return (
        *data_parallel_collectives(context),
        *model_parallel_collectives(context),
        *_pipeline(context),
        *_once_per_step(context),
    )


def model_parallel_collectives(context: StageContext) -> tuple[Collective, ...]:
    """Collectives of divided matrices, sequences, experts or vocabulary, for which micro-batches wait."""
    return (*_blocks(context), *_tables(context), *token_collectives(context))


def _blocks(context: StageContext) -> Iterator[Collective]:
    """Tensor, context and expert parallelism inside blocks, per micro-batch; full recomputation repeats the forward."""
    layout = context.plan.layout
    if layout.tp == layout.cp == layout.ep == 1:
        return
    counts: dict[int, int] = {}
    layers: dict[int, LayerSpec] = {}
    for layer, count in context.layer_runs:
        counts[id(layer)] = counts.get(id(layer), 0) + count
        layers[id(layer)] = layer
    for key, layer in layers.items():
        calls = (*_tensor(layer, context), *_context(layer, context), *_experts(layer, context))
        yield from _per_block(calls, layer, counts[key], context)


def block_collectives(layer: LayerSpec, context: StageContext) -> tuple[Collective, ...]:
    """Collectives of one block for one micro-batch, with those that recomputation repeats."""
    layout = context.plan.layout
    if layout.tp == layout.cp == layout.ep == 1:
        return ()
    calls = [*_tensor(layer, context), *_context(layer, context), *_experts(layer, context)]
    if context.plan.recipe.recompute == "full" or repeats_modules(context.plan.recipe):
        again = [
            (replace(call, phase="recompute"), _times_again(call, times, layer, context), is_hidden)
            for call, times, is_hidden in calls
            if call.phase == "forward"
        ]
        calls += [(call, times, is_hidden) for call, times, is_hidden in again if times]
    return tuple(
        record
        for call, times, is_hidden in calls
        for record in _issue(call, context, is_hidden=is_hidden, units=times, rounds=1)
    )


def _per_block(
    calls: tuple[tuple[Call, int, bool], ...], layer: LayerSpec, blocks: int, context: StageContext
) -> Iterator[Collective]:
    rounds = context.rounds
    recomputed = context.num_recomputed(layer) if repeats_calls(context) else 0
    for call, times, is_hidden in calls:
        asked_for = times * blocks - _not_asked_for(call, layer, context)
        yield from _issue(call, context, is_hidden=is_hidden, units=asked_for, rounds=rounds)
        if call.phase == "forward" and recomputed:
            again = replace(call, phase="recompute")
            units = _times_again(call, times, layer, context) * recomputed
            yield from _issue(again, context, is_hidden=is_hidden, units=units, rounds=rounds)


def _issue(call: Call, context: StageContext, *, is_hidden: bool, units: int, rounds: int) -> Iterator[Collective]:
    """``units`` calls in each of ``rounds`` micro-batches, hidden where the engine and the host let them be."""
    issue = call.hidden if is_hidden else call.exposed
    return as_issued(issue(units=units, rounds=rounds), context.plan)


def _not_asked_for(call: Call, layer: LayerSpec, context: StageContext) -> int:
    """1 for a call that is skipped: where only adapters learn, the first block's input has no gradient to sum."""
    is_first = context.stage.has_embedding and layer is context.layer_runs[0][0]
    is_sum = call.group.axis == "tp" and call.kind in ("all_reduce", "reduce_scatter")
    return int(
        is_native_engine(context.plan) and context.has_adapter and is_first and is_sum and call.phase == "backward"
    )


def repeats_calls(context: StageContext) -> bool:
    """Whether recomputation communicates again: torchtitan's selective one and ours gather again.

    What torchtitan keeps beside products and attention are scattered sums (``_save_list`` of ``parallelize_llama.py``).
    """
    recipe = context.plan.recipe
    if recipe.recompute == "selective" and recipe.recompute_modules is not None:
        return repeats_modules(recipe)
    is_per_operation = recipe.recompute == "selective" and context.profile.selective_policy == "operations"
    return recipe.recompute == "full" or is_per_operation


def repeats_modules(recipe: Recipe) -> bool:
    """Whether modules that communicate are recomputed whole: a feed-forward, experts or shared experts."""
    return recipe.recompute == "selective" and not COMMUNICATING.isdisjoint(recipe.recompute_modules or ())


def _times_again(call: Call, times: int, layer: LayerSpec, context: StageContext) -> int:
    """How often recomputing a block repeats a call of its forward.

    torch stops recomputing when nothing more is needed, before the last sum over tensor-parallel ranks unless eager
    dropout saves its mask behind it; selective recomputation keeps what was scattered, ours also what was exchanged
    (``train/recompute.py``).
    """
    recipe = context.plan.recipe
    if recipe.recompute == "selective" and recipe.recompute_modules is not None:
        return _times_with_modules(call, layer, recipe.recompute_modules)
    if recipe.recompute == "selective" and call.kind in ("reduce_scatter", "all_to_all"):
        return 0
    is_sum = call.kind in ("reduce_scatter", "all_reduce")
    stops = context.profile.is_torch and not (context.block_context.hidden_dropout and not recipe.compile)
    return times - (is_sum and stops and bool(unread_product(layer)))


def _times_with_modules(call: Call, layer: LayerSpec, modules: tuple[RecomputeModule, ...]) -> int:
    """The exchanges of experts that are recomputed whole, and the tensor-parallel pair of what is recomputed."""
    is_routed = isinstance(layer.feed_forward, MoeSpec)
    if call.group.axis == "ep":
        return int(is_routed and "moe" in modules)
    repeated = ("moe", "shared_experts") if is_routed else ("mlp",)
    return int(call.group.axis == "tp" and not set(repeated).isdisjoint(modules))


def _hidden_bytes(context: StageContext) -> Bytes:
    """The whole residual stream of one micro-batch."""
    block = context.block_context
    return block.tokens * block.hidden_size * block.element_bytes


def _column_row_pairs(layer: LayerSpec, context: StageContext) -> int:
    """Column-parallel products followed by row-parallel ones: each pair communicates once in each direction."""
    mixers = (layer.mixer is not None) + (layer.cross_attention is not None)
    block = layer.feed_forward
    has_dense = isinstance(block, DenseSpec)
    has_shared = isinstance(block, MoeSpec) and block.shared_intermediate_size > 0
    has_split_experts = isinstance(block, MoeSpec) and context.plan.layout.expert_tp > 1
    if layer.is_parallel and has_dense:
        return 1
    return mixers + (has_dense or has_shared or has_split_experts)


def _tensor(layer: LayerSpec, context: StageContext) -> Iterator[tuple[Call, int, bool]]:
    """Two all-reduces per pair; with sequence parallelism an all-gather and a reduce-scatter in their place.

    Megatron gathers the divided input once more for the weight gradient; DTensor keeps the gathered one.
    Asynchronous tensor parallelism runs them under the products of their pair, torch's in forward alone.
    """
    layout = context.plan.layout
    pairs = _column_row_pairs(layer, context)
    group = Groups(layout=layout).tensor
    for phase in ("forward", "backward"):
        if not layout.sequence_parallel:
            yield _call("tensor parallel", "all_reduce", group, context, phase), pairs, False
            continue
        gathers_again = phase == "backward" and not context.profile.saves_gathered_input and not context.has_adapter
        gathers = pairs * (2 if gathers_again else 1)
        is_hidden = layout.async_tensor_parallel and (phase == "forward" or not context.profile.is_torch)
        gather = _call("sequence parallel", "all_gather", group, context, phase)
        narrowed = gather.num_bytes * gathered_element_bytes(context) // context.block_context.element_bytes
        yield replace(gather, num_bytes=narrowed), gathers, is_hidden
        yield _call("sequence parallel", "reduce_scatter", group, context, phase), pairs, is_hidden


def _call(name: str, kind: CollectiveKind, group: Group, context: StageContext, phase: OperationPhase) -> Call:
    return Call(name=f"{name} {kind}", kind=kind, group=group, num_bytes=_hidden_bytes(context), phase=phase)


def _context(layer: LayerSpec, context: StageContext) -> Iterator[tuple[Call, int, bool]]:
    """Keys and values of the other ranks' part of the sequence.

    Megatron passes them round a ring under the attention of the previous piece; DeepSpeed exchanges heads for tokens
    (Ulysses); torch gathers all of them, and passes their gradients round a ring in fp32, one hop after every piece
    (``_templated_ring_attention_backward``; the rotation by all-gather is for keys and values alone).
    """
    spec, layout = layer.mixer, context.plan.layout
    if not isinstance(spec, AttentionSpec) or layout.cp == 1:
        return
    group = Groups(layout=layout).context
    block = context.block_context
    heads = ceil(spec.num_attention_heads / layout.tp)
    kv_heads = heads if context.plan.recipe.repeat_kv_heads else ceil(spec.num_key_value_heads / layout.tp)
    row = block.tokens * block.element_bytes
    keys_and_values = row * kv_heads * (spec.head_dim + spec.v_head_dim)

    def call(kind: CollectiveKind, num_bytes: Bytes, phase: OperationPhase) -> Call:
        return Call(name=f"context parallel {kind}", kind=kind, group=group, num_bytes=num_bytes, phase=phase)

    if context.profile.sharding == "megatron":
        hops = layout.cp - 1
        yield call("send_recv", keys_and_values, "forward"), hops, True
        yield call("send_recv", RING_BACKWARD_RATIO * keys_and_values, "backward"), hops, True
    elif context.profile.sharding == "deepspeed":
        inputs = row * (heads * spec.head_dim) + keys_and_values
        outputs = row * heads * spec.v_head_dim
        for phase in ("forward", "backward"):
            yield call("all_to_all", inputs, phase), 1, False
            yield call("all_to_all", outputs, phase), 1, False
    else:
        whole = keys_and_values * layout.cp
        yield call("all_gather", whole, "forward"), 1, False
        if is_native_engine(context.plan):  # our trainer keeps what it gathered
            yield call("reduce_scatter", whole, "backward"), 1, False
        else:
            yield call("all_gather", whole, "backward"), 1, False
            gradients = keys_and_values * FP32_BYTES // block.element_bytes
            yield call("send_recv", gradients, "backward"), layout.cp, False


def _experts(layer: LayerSpec, context: StageContext) -> Iterator[tuple[Call, int, bool]]:
    """Token copies to their experts and back, in forward and in backward, as many as the fullest rank has.

    DualPipe runs them under the other direction's micro-batch (DeepSeek-V3, arXiv:2412.19437, section 3.2.1).
    """
    if not isinstance(layer.feed_forward, MoeSpec) or context.plan.layout.ep == 1:
        return
    block = context.block_context
    choice = expert_choice(layer.feed_forward)
    copies = block.tokens * choice.num_experts_per_tok // context.plan.layout.tp
    even = copies * _expert_width(layer, block.hidden_size) * block.element_bytes
    payload = ceil(even * imbalance_ratio(context.plan))
    group = Groups(layout=context.plan.layout).experts
    tells_counts = expert_exchange(context.plan) == "alltoall"
    is_hidden = SCHEDULE_KINDS[context.plan.layout.schedule].overlaps_passes
    for phase in ("forward", "backward"):
        for name in ("expert dispatch", "expert combine"):
            call = Call(
                name=name,
                kind="all_to_all",
                group=group,
                num_bytes=payload,
                phase=phase,
                sent_once=None if tells_counts else choice,
            )
            yield call, 1, is_hidden
    if tells_counts:
        num_bytes = layer.feed_forward.num_experts * COUNT_BYTES
        counts = Call(name=COUNTS, kind="all_to_all", group=group, num_bytes=num_bytes, phase="forward")
        yield counts, 1, False


def _expert_width(layer: LayerSpec, hidden_size: int) -> int:
    """Width of what travels to an expert: of the residual stream, or less where experts work on projected tokens."""
    block = layer.feed_forward
    if not isinstance(block, MoeSpec) or not block.moe_intermediate_size:
        return hidden_size
    rows = block.num_experts * block.moe_intermediate_size
    widths = [weight.num_params // rows for weight in layer.weights if weight.is_expert and len(weight.shape) == 3]
    return min((*(width for width in widths if width > 0), hidden_size))


def _tables(context: StageContext) -> Iterator[Collective]:
    """The vocabulary-parallel embedding and head, and the loss over divided logits."""
    layout, stage, rounds = context.plan.layout, context.stage, context.rounds
    group = Groups(layout=layout).tensor
    is_divided = layout.sequence_parallel
    if stage.has_embedding:
        kind: CollectiveKind = "reduce_scatter" if is_divided else "all_reduce"
        yield from _call("embedding", kind, group, context, "forward").exposed(units=1, rounds=rounds)
        if is_divided and not (context.has_adapter and is_native_engine(context.plan)):
            yield from _call("embedding", "all_gather", group, context, "backward").exposed(units=1, rounds=rounds)
    if stage.has_head and context.plan.model.has_head:
        kind = "reduce_scatter" if is_divided else "all_reduce"
        if is_divided:
            yield from _call("head", "all_gather", group, context, "forward").exposed(units=1, rounds=rounds)
        yield from _call("head", kind, group, context, "backward").exposed(units=1, rounds=rounds)
        loss = Call(
            name="vocabulary-parallel loss",
            kind="all_reduce",
            group=group,
            num_bytes=context.tokens * SCALAR_BYTES,
            phase="forward",
        )
        yield from loss.exposed(units=LOSS_REDUCTIONS, rounds=rounds)


def _pipeline(context: StageContext) -> Iterator[Collective]:
    """Activations to the next chunk and gradients to the previous one, where they live on another rank.

    Megatron hides them when chunks are interleaved (``overlap_p2p_comm``); otherwise a stage waits for them.
    """
    layout = context.plan.layout
    if layout.pp == 1:
        return
    group = Groups(layout=layout).pipeline
    last = num_chunks(layout) - 1
    payload = message_bytes(context)
    is_hidden = not SCHEDULE_KINDS[layout.schedule].is_plain
    forward = backward = 0
    for chunk in context.stage.chunks:
        owner, position = context.stage.index, chunk_in_model(chunk=chunk.index, layout=layout)
        forward += position < last and chunk_owner(chunk=chunk.index + 1, layout=layout) != owner
        backward += position > 0 and chunk_owner(chunk=chunk.index - 1, layout=layout) != owner
    directions: tuple[tuple[OperationPhase, int], ...] = (("forward", forward), ("backward", backward))
    for phase, sends in directions:
        call = Call(name=f"pipeline {phase}", kind="send_recv", group=group, num_bytes=payload, phase=phase)
        yield from _issue(call, context, is_hidden=is_hidden, units=sends, rounds=context.rounds)
        if joins_messages(context):
            joined = Call(
                name=f"pipeline {phase} joined",
                kind="all_gather",
                group=Groups(layout=layout).tensor,
                num_bytes=_hidden_bytes(context),
                phase=phase,
            )
            yield from joined.exposed(units=sends, rounds=context.rounds)


def message_bytes(context: StageContext) -> Bytes:
    """Bytes of one message to the next pipeline stage: a rank's part of the hidden states, or all of them."""
    layout = context.plan.layout
    return _hidden_bytes(context) // (layout.tp if layout.sequence_parallel or joins_messages(context) else 1)


def joins_messages(context: StageContext) -> bool:
    """Whether tensor-parallel ranks each send a part of a message, which the receivers gather.

    DeepSpeed's pipeline does so with activations and gradients (``runtime/pipe/engine.py``, ``is_pipe_partitioned`` and
    ``is_grad_partitioned``). Megatron-LM did until 2023 (``--no-scatter-gather-tensors-in-pipeline``); today
    (``core/pipeline_parallel/p2p_communication.py``) a sequence is divided or a message is sent whole by every rank.
    """
    layout = context.plan.layout
    return context.profile.sharding == "deepspeed" and layout.tp > 1 and not layout.sequence_parallel


def _once_per_step(context: StageContext) -> Iterator[Collective]:
    """Collectives once a step: gradient norm, partial gradients of tensor ranks, Muon's matrices, a shared table."""
    layout = context.plan.layout
    groups = Groups(layout=layout)
    everywhere: tuple[Group, ...] = (groups.shards, groups.replicas, groups.tensor, _whole_pipeline(groups))
    if is_native_engine(context.plan):
        yield from _sums_of_the_step(layout)
        everywhere = ()
    for group in everywhere if needs_norm(context.plan) else ():
        norm = Call(name="gradient norm", kind="all_reduce", group=group, num_bytes=SCALAR_BYTES, phase="optimizer")
        yield from norm.exposed(units=1, rounds=1)
    yield from gradients_over_tensor_ranks(context)
    yield from muon_collectives(context)
    yield from tied_table_sum(context)


def tied_table_sum(context: StageContext) -> Iterator[Collective]:
    """The sum of the gradients of a table that the first and the last stage hold, where these are two."""
    layout, model = context.plan.layout, context.plan.model
    if layout.pp == 1 or not model.tie_word_embeddings or context.stage.has_embedding == context.stage.has_head:
        return
    table = Call(
        name="tied embedding gradient",
        kind="all_reduce",
        group=Groups(layout=layout).pipeline,
        num_bytes=ceil(model.num_embedding_params / layout.tp) * context.states.gradient_bytes,
        phase="optimizer",
    )
    yield from table.exposed(units=1, rounds=1)


def _sums_of_the_step(layout: Layout) -> Iterator[Collective]:
    """Our trainer adds up loss, tokens and gradient norm over all ranks in one call."""
    axis: Axis = "pp" if layout.pp > 1 else "dp_replicate" if layout.dp_replicate > 1 else "dp_shard"
    everyone = Group(axis=axis, size=layout.world_size, stride=1)
    sums = Call(name="gradient norm", kind="all_reduce", group=everyone, num_bytes=SUMS_BYTES, phase="optimizer")
    yield from sums.exposed(units=1, rounds=1)


def gradients_over_tensor_ranks(context: StageContext) -> Iterator[Collective]:
    """Gradients that tensor-parallel ranks have parts of.

    Under sequence parallelism norms, routers and undivided experts have seen part of the tokens. Copies of key-value
    heads serve different query heads; without the sum they would drift apart. Beside a divided matrix one
    factor of an adapter is whole, and each rank knows the part of its gradient that comes through the other's part.
    """
    layout = context.plan.layout
    if layout.tp == 1:
        return
    if context.has_adapter:
        yield from _adapters_over_tensor_ranks(context)
        return
    is_native = is_native_engine(context.plan)
    blocks = [
        (weight, count, is_native and _is_inside_divided(weight, layer))
        for layer, count in context.layer_runs
        for weight in layer.weights
    ]
    final = [(weight, 1, False) for weight in context.plan.model.final_weights if context.stage.has_head]
    sums: dict[tuple[str, int], int] = {}
    for weight, count, is_inside in blocks + final:
        if (layout.sequence_parallel or is_inside) and (
            weight.split == "replicated" or _is_whole_expert(weight, context)
        ):
            key = ("gradients of replicated weights", layout.tp)
        elif weight.split_limit and layout.tp > weight.split_limit:
            key = ("gradients of copied key-value heads", layout.tp // weight.split_limit)
        else:
            continue
        sums[key] = sums.get(key, 0) + _held_gradient(weight, context) * count
    for (name, size), elements in sums.items():
        call = Call(
            name=name,
            kind="all_reduce",
            group=Group(axis="tp", size=size, stride=1),
            num_bytes=elements * context.states.gradient_bytes,
            phase="optimizer",
        )
        yield from call.exposed(units=1, rounds=1)


def _adapters_over_tensor_ranks(context: StageContext) -> Iterator[Collective]:
    layout, recipe = context.plan.layout, context.plan.recipe
    elements = sum(
        _held_gradient(weight, context) * count
        for layer, count in context.layer_runs
        for weight in adapter_weights(layer, rank=recipe.lora_rank, targets=recipe.lora_targets)
        if weight.split == "replicated"
    )
    call = Call(
        name="gradients of undivided adapter factors",
        kind="all_reduce",
        group=Group(axis="tp", size=layout.tp, stride=1),
        num_bytes=elements * context.states.gradient_bytes,
        phase="optimizer",
    )
    yield from call.exposed(units=1, rounds=1)


def _is_inside_divided(weight: Weight, layer: LayerSpec) -> bool:
    """Whether a module that ranks divide, such as attention, holds a weight: a whole one serves a rank's part there.

    Our trainer divides no expert by rows, and a whole one that sees every token has its whole gradient.
    """
    rows = [row.name for row in layer.weights if row.split == "row" and not row.is_expert]
    around = {name.removesuffix(".weight").rpartition(".")[0] for name in rows}
    return any(weight.name.startswith(f"{name}.") for name in around)


def _is_whole_expert(weight: Weight, context: StageContext) -> bool:
    """Whether our trainer leaves an expert whole: every tensor-parallel rank sends it the tokens of its own part."""
    layout = context.plan.layout
    return is_native_engine(context.plan) and weight.is_expert and layout.ep == 1 and layout.expert_tp == 1


def _held_gradient(weight: Weight, context: StageContext) -> int:
    """Elements of a gradient when it is summed, which our trainer does after it was scattered."""
    layout = context.plan.layout
    whole = local_num_params(weight, layout)
    if not is_native_engine(context.plan) or is_replicated(layout):
        return whole
    return ceil(weight.shape[0] / layout.state_shard_size) * (whole // weight.shape[0])


def _whole_pipeline(groups: Groups) -> Group:
    return Group(axis="pp", size=groups.layout.pp, stride=groups.pipeline.stride)
