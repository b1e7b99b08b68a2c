"""The tensors one block keeps from forward to backward, by name.

Shapes in this file: T tokens of one rank and micro-batch (after context parallelism), h ``hidden_size``,
a query heads, k key-value heads, d head dim, f feed-forward width, E experts, K experts per token.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, MambaSpec, MoeSpec
from shardwise.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockContext:
    """Everything outside the block that decides how large its saved tensors are."""

    hidden_size: int
    tokens: int
    """T: tokens of one micro-batch on this rank."""
    seq_len: int
    """Keys one query attends to, over all context-parallel ranks."""
    tp: int
    expert_tp: int
    is_sequence_parallel: bool
    element_bytes: int
    """Bytes of an activation element: 2, or 4 in fp32."""
    residual_bytes: int
    """Bytes of an element of the residual stream; 4 under autocast without FSDP's input cast."""
    is_eager_attention: bool
    has_fused_softmax: bool
    has_fused_norm: bool
    has_fused_activation: bool
    saves_gathered_input: bool
    expands_key_values: bool
    """Grouped keys and values are repeated to all heads before attention."""
    attention_dropout: bool
    hidden_dropout: bool
    saves_attention_input: bool
    """A matrix that is trained, or adapted, keeps its input for the weight gradient; a frozen one does not."""
    saves_mlp_input: bool
    casts_inputs_separately: bool
    """Eager autocast casts a norm's fp32 output once for every matrix that reads it."""
    has_fp8_matmul: bool = False
    gathered_sequence_ratio: int = 1
    """Keys and values kept of the whole sequence over those of this rank's tokens (our trainer's context parallelism),
    whose two pieces of attention output are kept beside their sum."""
    copies_exchanged_rows: bool = False
    """Rows of experts are kept in the order they arrive in as well as in the order experts want."""
    remakes_elementwise: bool = False
    """A compiled dense block makes norms and activations again in the kernel of backward that reads them. The norm
    before a gather over tensor-parallel ranks stays."""

    @property
    def sequence_shards(self) -> int:
        """Ranks the residual stream is divided over."""
        return self.tp if self.is_sequence_parallel else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """One tensor kept for backward."""

    name: str
    num_bytes: Bytes
    kept_by_operation_policy: bool = False
    """Selective recomputation of torchtitan keeps it: outputs of attention and of every second matrix product."""
    is_routed: bool = False
    """Belongs to routed experts."""
    is_core_attention: bool = False
    """Selective recomputation of Megatron drops it: softmax and dropout of the attention scores."""


def saved_tensors(layer: LayerSpec, context: BlockContext) -> tuple[SavedTensor, ...]:
    """Everything a block keeps for backward without recomputation, its input first.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.1, generalised to grouped heads, gated activations,
    experts and each engine's kernels; the sums are checked against saved-tensor hooks.
    """
    hidden = context.hidden_size
    if isinstance(layer.feed_forward, MoeSpec):
        context = replace(context, remakes_elementwise=False)  # of such a block attention alone is compiled
    tensors: list[SavedTensor] = [_residual("input", hidden, context)]
    tensors += _norms(layer, hidden, context)
    if isinstance(layer.mixer, AttentionSpec):
        tensors += _attention("attention", layer.mixer, context)
    elif isinstance(layer.mixer, MambaSpec):
        tensors += _mamba(layer.mixer, context)
    if layer.cross_attention is not None:
        tensors += _attention("cross_attention", layer.cross_attention, context)
        tensors.append(_residual("cross_attention.residual", hidden, context))
    if layer.mixer is not None and layer.feed_forward is not None and not layer.is_parallel:
        tensors.append(_residual("feed_forward.residual", hidden, context))
    if isinstance(layer.feed_forward, DenseSpec):
        tensors += _dense("mlp", layer.feed_forward.intermediate_size, layer.feed_forward.is_gated, context)
    elif isinstance(layer.feed_forward, MoeSpec):
        tensors += _moe(layer.feed_forward, hidden, context)
    if context.hidden_dropout:
        parts = (layer.mixer is not None) + (layer.feed_forward is not None) + (layer.cross_attention is not None)
        mask = context.tokens * hidden // context.sequence_shards
        tensors.append(SavedTensor(name="dropout_masks", num_bytes=parts * mask))
    return tuple(tensor for tensor in tensors if tensor.num_bytes)


def _residual(name: str, hidden: int, context: BlockContext) -> SavedTensor:
    elements = context.tokens * hidden // context.sequence_shards
    return SavedTensor(name=name, num_bytes=elements * context.residual_bytes)


def _norms(layer: LayerSpec, hidden: int, context: BlockContext) -> Iterator[SavedTensor]:
    """Norm outputs (the inputs of the matrix products) and what the norm itself keeps beyond its input."""
    attention = (layer.mixer is not None) + (layer.cross_attention is not None)
    shares_norm = layer.is_parallel and context.saves_attention_input
    mlp = layer.feed_forward is not None and not shares_norm
    branches = attention * context.saves_attention_input + mlp * context.saves_mlp_input
    if context.casts_inputs_separately:
        branches = max(branches, sum(weight.is_matrix and weight.split == "column" for weight in layer.weights))
    per_norm = context.tokens * hidden // context.sequence_shards
    gathered = context.tokens * hidden if context.saves_gathered_input else per_norm
    is_remade = context.remakes_elementwise and context.tp == 1
    yield SavedTensor(name="norm_outputs", num_bytes=(not is_remade) * branches * gathered * context.element_bytes)
    if not context.has_fused_norm and layer.norm == "rmsnorm":
        # x in fp32 instead of x, and the normalised x (transformers' RMSNorm: 4 more bytes per element, measured).
        yield SavedTensor(name="norm_intermediates", num_bytes=layer.num_norms * per_norm * 4)
    yield SavedTensor(name="norm_statistics", num_bytes=layer.num_norms * 4 * context.tokens // context.sequence_shards)


def _attention(prefix: str, spec: AttentionSpec, context: BlockContext) -> Iterator[SavedTensor]:
    size = context.element_bytes
    heads = spec.num_attention_heads / context.tp
    kv_heads = max(spec.num_key_value_heads / context.tp, min(1, spec.num_key_value_heads))
    if context.expands_key_values or spec.kind == "mla":
        kv_heads = heads
    tokens = context.tokens
    if spec.kind == "mla":
        yield from _latent(prefix, spec, context)
    if spec.has_qk_norm:
        pre_norm = tokens * (heads + kv_heads) * spec.head_dim * size
        yield SavedTensor(name=f"{prefix}.qk_norm_inputs", num_bytes=int(pre_norm))
    yield SavedTensor(
        name=f"{prefix}.query", num_bytes=int(tokens * heads * spec.head_dim * size), kept_by_operation_policy=True
    )
    all_tokens = tokens * context.gathered_sequence_ratio
    yield SavedTensor(name=f"{prefix}.key", num_bytes=int(all_tokens * kv_heads * spec.head_dim * size))
    value = int(all_tokens * kv_heads * spec.v_head_dim * size)
    yield SavedTensor(name=f"{prefix}.value", num_bytes=value, kept_by_operation_policy=True)
    output = int(tokens * heads * spec.v_head_dim * size)
    pieces = 1 + (context.gathered_sequence_ratio > 1)
    yield SavedTensor(name=f"{prefix}.output", num_bytes=pieces * output, kept_by_operation_policy=True)
    if context.is_eager_attention:
        yield from _scores(prefix, heads, spec, context)
    else:
        yield SavedTensor(
            name=f"{prefix}.log_sum_exp", num_bytes=int(4 * tokens * heads), kept_by_operation_policy=True
        )


def _latent(prefix: str, spec: AttentionSpec, context: BlockContext) -> Iterator[SavedTensor]:
    """MLA: the compressed query and key-value rows, before and after their norms."""
    size = context.element_bytes
    query_rank = spec.q_lora_rank or 0
    kv_rank = spec.kv_lora_rank or 0
    elements = context.tokens * (2 * query_rank + 2 * kv_rank + (spec.qk_rope_head_dim or 0))
    yield SavedTensor(name=f"{prefix}.latents", num_bytes=elements * size // context.sequence_shards)


def _scores(prefix: str, heads: float, spec: AttentionSpec, context: BlockContext) -> Iterator[SavedTensor]:
    """The (heads, query, key) tensors an unfused softmax keeps: Korthikanti's 5 a s^2 b when dropout is on."""
    keys = (
        min(context.seq_len, spec.sliding_window or context.seq_len) if context.has_fused_softmax else context.seq_len
    )
    elements = context.tokens * heads * keys
    size = context.element_bytes
    softmax = size if context.has_fused_softmax or size == 4 else 4 + size
    dropout = 1 + size if context.attention_dropout else 0
    yield SavedTensor(name=f"{prefix}.scores", num_bytes=int(elements * (softmax + dropout)), is_core_attention=True)


def _dense(name: str, width: int, is_gated: bool, context: BlockContext) -> Iterator[SavedTensor]:
    """Feed-forward intermediates: gate and up (or the one pre-activation), then the down projection's input."""
    column = context.tokens * width * context.element_bytes // context.tp
    yield SavedTensor(name=f"{name}.pre_activation", num_bytes=column, kept_by_operation_policy=True)
    if is_gated:
        yield SavedTensor(name=f"{name}.up", num_bytes=column)
        if not context.has_fused_activation:
            yield SavedTensor(name=f"{name}.activated_gate", num_bytes=column)
    if context.saves_mlp_input and not context.remakes_elementwise:
        yield SavedTensor(name=f"{name}.down_input", num_bytes=column)


def _moe(spec: MoeSpec, hidden: int, context: BlockContext) -> Iterator[SavedTensor]:
    """Routed tokens (balanced): dispatched input, expert intermediates, expert output, router scores."""
    size = context.element_bytes
    routed = context.tokens * spec.num_experts_per_tok // context.sequence_shards
    width = spec.moe_intermediate_size // context.expert_tp
    copies = 1 + spec.is_gated + (spec.is_gated and not context.has_fused_activation)
    orders = 3 if context.copies_exchanged_rows else 1
    yield SavedTensor(name="experts.dispatched_input", num_bytes=orders * routed * hidden * size, is_routed=True)
    yield SavedTensor(
        name="experts.pre_activation", num_bytes=routed * width * size, kept_by_operation_policy=True, is_routed=True
    )
    yield SavedTensor(name="experts.intermediates", num_bytes=routed * width * size * copies, is_routed=True)
    yield SavedTensor(
        name="experts.output", num_bytes=routed * hidden * size, kept_by_operation_policy=True, is_routed=True
    )
    yield SavedTensor(name="router.scores", num_bytes=4 * context.tokens * spec.num_experts // context.sequence_shards)
    if spec.shared_intermediate_size:
        yield from _dense("shared_experts", spec.shared_intermediate_size, spec.is_gated, context)


def _mamba(spec: MambaSpec, context: BlockContext) -> Iterator[SavedTensor]:
    """State space mixer: input projection, convolution output, step sizes, scan output and gated output.

    Assumes: the fused scan keeps no per-step states (they are recomputed chunk by chunk), as the reference kernels do.
    """
    inner = context.tokens * spec.intermediate_size * context.element_bytes // context.tp
    small = context.tokens * (spec.time_step_rank + 2 * spec.state_size) * context.element_bytes
    yield SavedTensor(name="mamba.projected", num_bytes=2 * inner, kept_by_operation_policy=True)
    yield SavedTensor(name="mamba.convolved", num_bytes=inner)
    yield SavedTensor(name="mamba.step_sizes", num_bytes=inner + small)
    yield SavedTensor(name="mamba.scan_output", num_bytes=2 * inner, kept_by_operation_policy=False)


def backward_temporaries(layer: LayerSpec, context: BlockContext) -> Bytes:
    """Gradient tensors alive at once inside a block's backward, beyond what its saved tensors free on the way.

    The widest point is the gated activation: gradients of its input (two widths) and output stand beside what is kept,
    while the down projection's input has just been freed; the residual gradient is alive throughout.
    """
    size = context.element_bytes
    hidden = context.hidden_size
    residual = context.tokens * hidden * context.residual_bytes // context.sequence_shards
    widest = 0
    if isinstance(layer.feed_forward, DenseSpec):
        widths = 2 if layer.feed_forward.is_gated else 1
        widest = widths * context.tokens * layer.feed_forward.intermediate_size * size // context.tp
    elif isinstance(layer.feed_forward, MoeSpec):
        moe = layer.feed_forward
        routed = context.tokens * moe.num_experts_per_tok // context.sequence_shards
        widest = routed * (2 * moe.moe_intermediate_size // context.expert_tp + hidden) * size
    if context.is_eager_attention and isinstance(layer.mixer, AttentionSpec):
        heads = layer.mixer.num_attention_heads / context.tp
        widest = max(widest, int(2 * size * context.tokens * heads * context.seq_len))
    return residual + widest
