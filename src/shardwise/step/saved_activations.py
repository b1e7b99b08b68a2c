"""The tensors one block keeps from forward to backward, by name.

Shapes in this file: T tokens of one rank and micro-batch (after context parallelism), h ``hidden_size``,
a query heads, k key-value heads, d head dim, f feed-forward width, E experts, K experts per token.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.columns import either, most, whole
from shardwise.engines.profile import SelectivePolicy
from shardwise.model import AttentionSpec, DenseSpec, LayerSpec, MambaSpec, MoeSpec, Normed
from shardwise.recipe import LoraTargets, RecomputeModule
from shardwise.step.held_weights import adapter_weights
from shardwise.units import Bytes

_READ_BEHIND: frozenset[Normed] = frozenset(("outputs", "both"))
"""Norms whose input is neither the residual nor what a product reads."""
_MOE: tuple[RecomputeModule, ...] = ("moe",)
_MOE_ACTIVATION: tuple[RecomputeModule, ...] = ("moe_act", "moe")
SPELLED_OUT = {"gelu_new": 3}
"""Activations that transformers writes in plain operations, and how many factors as wide as their input these keep:
half the input, the tanh, and the tanh plus one (``activations.py``, ``NewGELUActivation``)."""
_SHARED_EXPERTS: tuple[RecomputeModule, ...] = ("shared_experts", "moe")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The LoRA matrices that are added to every block."""

    rank: int
    targets: LoraTargets
    has_dropout: bool
    input_bytes: Bytes = 0
    """Bytes an element of its input that every adapted matrix keeps as a copy of its own; 0 where readers share one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectiveRule:
    """The rule by which selective recomputation keeps some saved tensors of a block and recomputes the others."""

    policy: SelectivePolicy = "operations"
    modules: tuple[RecomputeModule, ...] | None = None
    """Parts of the block that are recomputed, instead of what the policy says."""
    is_compiled: bool = True
    """Whether the block is compiled; an eager one keeps the last product, too, under the policy of operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockContext:
    """Everything outside the block that decides how large its saved tensors are."""

    hidden_size: int
    tokens: int
    """T: tokens of one micro-batch on this rank."""
    seq_len: int
    """Number of keys one query attends to, over all context-parallel ranks."""
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
    attention_dropout: bool
    hidden_dropout: bool
    saves_attention_input: bool
    """A matrix that is trained, or adapted, keeps its input for the weight gradient; a frozen one does not."""
    saves_mlp_input: bool
    casts_inputs_separately: bool
    """Whether eager autocast casts a norm's fp32 output once for every matrix that reads it."""
    keeps_packed_products: bool = False
    """Whether queries and keys are rotated to new tensors beside the product that made them and the values."""
    spells_out_activations: bool = False
    """Whether activations are those that transformers writes, operation by operation (our trainer's eager blocks)."""
    fuses_norms: bool = False
    """Whether norms before QKV and before a dense feed-forward are part of the product that reads them."""
    has_fp8_inputs: bool = False
    """Whether inputs of linear layers wait for backward in the 8 bits they were multiplied in."""
    has_fp8_activation_inputs: bool = False
    """Whether the input of SwiGLU waits for backward in 8 bits."""
    keeps_expert_outputs: bool = True
    """Whether router weights multiply the experts' output, which is then kept, and not their activation."""
    gathered_sequence_ratio: int = 1
    """Keys and values kept of the whole sequence over those of this rank's tokens (our trainer's context parallelism),
    whose two pieces of attention output are kept beside their sum."""
    copies_exchanged_rows: bool = False
    """Whether rows of experts are kept in the order they arrive in as well as in the order experts want."""
    keeps_exchanged_rows: bool = False
    """Whether the policy of operations finds exchanges of rows between ranks, which it keeps."""
    runs_experts_eagerly: bool = False
    """Whether kernels between experts' products run one by one although blocks are compiled (our trainer)."""
    remakes_expert_activation: bool = False
    """Whether experts keep gate and up alone, from which backward makes the input of their last product again
    (our trainer where experts are not divided, ``train/decoder/gated.py``)."""
    remakes_elementwise: bool = False
    """Whether a compiled dense block recomputes norms and activations in the kernel of backward that reads them. The
    norm before a gather over tensor-parallel ranks stays."""
    adapter: Adapter | None = None
    """LoRA matrices beside the block's own; they alone are trained."""
    selective: SelectiveRule = SelectiveRule()

    @property
    def sequence_shards(self) -> int:
        """Ranks the residual stream is divided over."""
        return either(self.is_sequence_parallel, self.tp, 1)

    @property
    def input_bytes(self) -> int:
        """Bytes of an element that a linear layer keeps of its input."""
        return 1 if self.has_fp8_inputs else self.element_bytes

    @property
    def activation_input_bytes(self) -> int:
        """Bytes of an element that a gated activation keeps of its input."""
        return 1 if self.has_fp8_activation_inputs else self.element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BackwardContext:
    """Tensors that a block's backward makes beside kept and restored ones, by the way blocks are recomputed."""

    num_gated_tensors: int = 2
    """Tensors as wide as the feed-forward that the backward of a gated activation makes: its output's gradient and two
    of its own take the place of one. A compiler recomputes the activation as well, all beside what it reads; where
    blocks are recomputed our trainer writes over that (``train/decoder/gated.py``)."""
    num_norms_remade: int = 0
    """Number of norm outputs that a compiled block makes once when all of it is recomputed, and holds for products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """One tensor kept for backward."""

    name: str
    num_bytes: Bytes
    kept_by_operation_policy: bool = False
    """Whether torchtitan's selective recomputation keeps it: outputs of attention, of every second matrix product, and
    of exchanges between ranks. Products run in the order q, k, v, o, gate, up, down, so q, v, gate and down are kept.
    Nothing in a block reads the output of down, so it is no tensor here: ``block_memory.py`` adds it to eager blocks,
    and a compiler drops it. ``train/recompute.py`` (``_Choice``) makes the same choice in a run."""
    is_routed: bool = False
    """Whether it belongs to routed experts."""
    is_core_attention: bool = False
    """Whether selective recomputation of Megatron drops it: softmax and dropout of the attention scores."""
    modules: tuple[RecomputeModule, ...] = ()
    """Modules whose recomputation drops it."""


def saved_tensors(layer: LayerSpec, context: BlockContext) -> tuple[SavedTensor, ...]:
    """Everything a block keeps for backward without recomputation, its input first.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.1, generalised to grouped heads, gated activations,
    experts and each engine's kernels; the sums are checked against saved-tensor hooks.
    """
    hidden = context.hidden_size
    if isinstance(layer.feed_forward, MoeSpec) and context.runs_experts_eagerly:
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
    remakes_residual = layer.normed in _READ_BEHIND and context.remakes_elementwise
    if layer.mixer is not None and layer.feed_forward is not None and not (layer.is_parallel or remakes_residual):
        tensors.append(_residual("feed_forward.residual", hidden, context))
    if isinstance(layer.feed_forward, DenseSpec):
        tensors += _dense("mlp", layer.feed_forward, context)
    elif isinstance(layer.feed_forward, MoeSpec):
        tensors += _moe(layer.feed_forward, hidden, context)
    tensors += _norm_inputs(layer, hidden, context)
    if context.hidden_dropout:
        parts = (layer.mixer is not None) + (layer.feed_forward is not None) + (layer.cross_attention is not None)
        mask = context.tokens * hidden // context.sequence_shards
        tensors.append(SavedTensor(name="dropout_masks", num_bytes=parts * mask))
    if context.adapter is not None:
        tensors.append(_adapters(layer, context.adapter, context))
    return tuple(tensor for tensor in tensors if tensor.num_bytes)


def _adapters(layer: LayerSpec, adapter: Adapter, context: BlockContext) -> SavedTensor:
    """Tensors that LoRA keeps beside the block: the rank-wide products, and dropped-out inputs with their masks."""
    element = adapter.input_bytes or context.element_bytes
    added = adapter_weights(layer, rank=adapter.rank, targets=adapter.targets)
    first = [weight for weight in added if weight.name.endswith("lora_A")]
    inputs = sum(weight.shape[1] // (context.tp if weight.split == "row" else 1) for weight in first)
    dropped = inputs * (element + 1) if adapter.has_dropout else inputs * adapter.input_bytes
    num_bytes = context.tokens * (len(first) * adapter.rank * element + dropped)
    return SavedTensor(name="adapters", num_bytes=num_bytes)


def _residual(name: str, hidden: int, context: BlockContext) -> SavedTensor:
    elements = context.tokens * hidden // context.sequence_shards
    return SavedTensor(name=name, num_bytes=elements * context.residual_bytes)


def _norm_inputs(layer: LayerSpec, hidden: int, context: BlockContext) -> Iterator[SavedTensor]:
    """What norms behind attention and feed-forward read. A compiler makes the residual of such sums again."""
    if layer.normed not in _READ_BEHIND:
        return
    num_bytes = context.tokens * hidden * context.element_bytes // context.sequence_shards
    yield SavedTensor(name="attention.projected", num_bytes=num_bytes)
    is_kept = context.selective.is_compiled  # ``block_memory.py`` adds the last product of an eager block
    yield SavedTensor(name="feed_forward.projected", num_bytes=num_bytes, kept_by_operation_policy=is_kept)


def _norms(layer: LayerSpec, hidden: int, context: BlockContext) -> Iterator[SavedTensor]:
    """Norm outputs (the inputs of the matrix products) and what the norm itself keeps beyond its input.

    Of two norms of one input, the one behind attention is far from its statistics, and a compiler keeps its output.
    """
    attention = (layer.mixer is not None) + (layer.cross_attention is not None)
    has_two_of_one = layer.is_parallel and layer.num_norms > 1
    shares_norm = layer.is_parallel and not has_two_of_one and context.saves_attention_input
    mlp = layer.feed_forward is not None and not shares_norm
    branches = attention * context.saves_attention_input + mlp * context.saves_mlp_input
    if context.casts_inputs_separately:
        branches = max(branches, sum(weight.is_matrix and weight.split == "column" for weight in layer.weights))
    per_norm = context.tokens * hidden // context.sequence_shards
    gathered = context.tokens * hidden if context.saves_gathered_input else per_norm
    if context.fuses_norms:
        yield from _megatron_norm_outputs(layer, per_norm, context)
    elif layer.normed != "outputs" or context.casts_inputs_separately:
        kept = int(has_two_of_one) if context.remakes_elementwise and context.tp == 1 else branches
        yield SavedTensor(name="norm_outputs", num_bytes=kept * gathered * context.element_bytes)
    if not context.has_fused_norm and layer.norm == "rmsnorm":
        # x in fp32 instead of x, and the normalised x (transformers' RMSNorm: 4 more bytes per element, measured).
        yield SavedTensor(name="norm_intermediates", num_bytes=layer.num_norms * per_norm * 4)
    yield SavedTensor(name="norm_statistics", num_bytes=layer.num_norms * 4 * context.tokens // context.sequence_shards)


def _megatron_norm_outputs(layer: LayerSpec, elements: int, context: BlockContext) -> Iterator[SavedTensor]:
    """Norm outputs that their readers keep; only a norm that is a module of its own can be recomputed.

    In 16 bits all readers keep one tensor. In 8 bits every linear layer keeps its own byte, and a router the 16 bits.

    Source: Megatron-LM ``core/models/gpt/gpt_layer_specs.py`` (``input_layernorm`` and ``pre_mlp_layernorm`` are
        modules with MLA and with experts, else ``IdentityOp``), ``core/transformer/moe/router.py``.
    """
    size, readers = context.element_bytes, 2 if _is_latent(layer) else 1
    if layer.mixer is not None and context.saves_attention_input:
        modules: tuple[RecomputeModule, ...] = ("layernorm",) if _is_latent(layer) else ()
        kept = readers if context.has_fp8_inputs else size
        yield SavedTensor(name="attention.norm_output", num_bytes=elements * kept, modules=modules)
    if layer.cross_attention is not None and context.saves_attention_input:
        yield SavedTensor(name="cross_attention.norm_output", num_bytes=elements * context.input_bytes)
    shares_norm = layer.is_parallel and context.saves_attention_input
    if shares_norm or not context.saves_mlp_input:
        return
    if isinstance(layer.feed_forward, MoeSpec):
        has_shared = layer.feed_forward.shared_intermediate_size > 0
        kept = size + has_shared * context.has_fp8_inputs
        yield SavedTensor(name="feed_forward.norm_output", num_bytes=elements * kept, modules=("layernorm",))
    elif layer.feed_forward is not None:
        kept = context.input_bytes
        yield SavedTensor(name="feed_forward.norm_output", num_bytes=elements * kept, modules=("mlp",))


def _is_latent(layer: LayerSpec) -> bool:
    return isinstance(layer.mixer, AttentionSpec) and layer.mixer.kind == "mla"


def _attention(prefix: str, spec: AttentionSpec, context: BlockContext) -> Iterator[SavedTensor]:
    size = context.element_bytes
    heads = spec.num_attention_heads / context.tp
    kv_heads = max(spec.num_key_value_heads / context.tp, min(1, spec.num_key_value_heads))
    tokens = context.tokens
    if spec.kind == "mla":
        kv_heads = heads
        yield from _latent(prefix, spec, context)
    if spec.has_qk_norm:
        pre_norm = tokens * (heads + kv_heads) * spec.head_dim * size
        yield SavedTensor(name=f"{prefix}.qk_norm_inputs", num_bytes=int(pre_norm))
    elif spec.is_packed and spec.has_rotary and context.keeps_packed_products:
        rotated = tokens * (heads + kv_heads) * spec.head_dim * size
        yield SavedTensor(name=f"{prefix}.packed_product", num_bytes=int(rotated))
    up: tuple[RecomputeModule, ...] = ("mla_up_proj",) if spec.kind == "mla" else ()
    query = int(tokens * heads * spec.head_dim * size)
    yield SavedTensor(name=f"{prefix}.query", num_bytes=query, kept_by_operation_policy=True, modules=up)
    all_tokens = tokens * context.gathered_sequence_ratio
    key = int(all_tokens * kv_heads * spec.head_dim * size)
    yield SavedTensor(name=f"{prefix}.key", num_bytes=key, kept_by_operation_policy=spec.is_packed, modules=up)
    value = int(all_tokens * kv_heads * spec.v_head_dim * size)
    yield SavedTensor(name=f"{prefix}.value", num_bytes=value, kept_by_operation_policy=True, modules=up)
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
    ranks = (spec.q_lora_rank or 0) + (spec.kv_lora_rank or 0)
    down = context.tokens * (ranks + (spec.qk_rope_head_dim or 0)) * context.element_bytes
    yield SavedTensor(name=f"{prefix}.latents", num_bytes=down // context.sequence_shards)
    normed = context.tokens * ranks * context.input_bytes // context.sequence_shards
    yield SavedTensor(name=f"{prefix}.normed_latents", num_bytes=normed, modules=("mla_up_proj",))


def _scores(prefix: str, heads: float, spec: AttentionSpec, context: BlockContext) -> Iterator[SavedTensor]:
    """The (heads, query, key) tensors an unfused softmax keeps: Korthikanti's 5 a s^2 b when dropout is on."""
    keys = (
        min(context.seq_len, spec.sliding_window or context.seq_len) if context.has_fused_softmax else context.seq_len
    )
    elements = context.tokens * heads * keys
    size = context.element_bytes
    softmax = size if context.has_fused_softmax or size == 4 else 4 + size
    dropout = 1 + size if context.attention_dropout else 0
    yield SavedTensor(
        name=f"{prefix}.scores",
        num_bytes=int(elements * (softmax + dropout)),
        is_core_attention=True,
        modules=("core_attn",),
    )


def _dense(
    name: str, spec: DenseSpec, context: BlockContext, *, modules: tuple[RecomputeModule, ...] = ("mlp",)
) -> Iterator[SavedTensor]:
    """Feed-forward intermediates: gate and up (or the one pre-activation), then the down projection's input."""
    width, is_gated = spec.intermediate_size, spec.is_gated
    column = context.tokens * width * context.element_bytes // context.tp
    read = context.activation_input_bytes if is_gated else context.element_bytes
    read_column = context.tokens * width * read // context.tp
    pre_activation = f"{name}.pre_activation"
    yield SavedTensor(name=pre_activation, num_bytes=read_column, kept_by_operation_policy=True, modules=modules)
    if is_gated:
        is_kept = spec.is_packed
        yield SavedTensor(name=f"{name}.up", num_bytes=read_column, kept_by_operation_policy=is_kept, modules=modules)
        if not context.has_fused_activation:
            yield SavedTensor(name=f"{name}.activated_gate", num_bytes=column, modules=modules)
    elif context.spells_out_activations:
        factors = SPELLED_OUT.get(spec.hidden_act, 0)
        yield SavedTensor(name=f"{name}.factors", num_bytes=factors * column, modules=modules)
    if context.saves_mlp_input and not context.remakes_elementwise:
        down_input = context.tokens * width * context.input_bytes // context.tp
        yield SavedTensor(name=f"{name}.down_input", num_bytes=down_input, modules=modules)


def _moe(spec: MoeSpec, hidden: int, context: BlockContext) -> Iterator[SavedTensor]:
    """Routed tokens (balanced): dispatched input, expert intermediates, expert output, router scores.

    The policy of operations lists plain products, which grouped ones are not, and exchanges of rows (pytorch/torchtitan
    v0.2.2 ``models/llama4/infra/parallelize.py``, ``_op_sac_save_list``; ``train/recompute.py``).
    """
    size = context.element_bytes
    routed = context.tokens * spec.num_experts_per_tok // context.sequence_shards
    width = spec.moe_intermediate_size // context.expert_tp
    read = context.activation_input_bytes if spec.is_gated else size
    is_fused = (context.has_fused_activation and not context.runs_experts_eagerly) | context.remakes_expert_activation
    up = read * spec.is_gated + size * (spec.is_gated and not is_fused)
    down_input = routed * width * context.input_bytes * (not context.remakes_expert_activation)
    exchanged = context.keeps_exchanged_rows
    for name, num_bytes, is_kept, modules in (
        ("dispatched_input", routed * hidden * context.input_bytes, exchanged, _MOE),
        ("reordered_input", 2 * routed * hidden * context.input_bytes * context.copies_exchanged_rows, False, _MOE),
        ("pre_activation", routed * width * read, False, _MOE),
        ("intermediates", routed * width * up, False, _MOE),
        ("down_input", down_input, False, _MOE_ACTIVATION),
        ("output", routed * hidden * size * context.keeps_expert_outputs, exchanged, _MOE),
    ):
        yield SavedTensor(
            name=f"experts.{name}",
            num_bytes=num_bytes,
            kept_by_operation_policy=is_kept,
            is_routed=True,
            modules=modules,
        )
    scores = 4 * context.tokens * spec.num_experts // context.sequence_shards
    yield SavedTensor(name="router.scores", num_bytes=scores, modules=_MOE)
    if spec.shared_intermediate_size:
        shared = DenseSpec(
            intermediate_size=spec.shared_intermediate_size, hidden_act=spec.hidden_act, is_gated=spec.is_gated
        )
        yield from _dense("shared_experts", shared, context, modules=_SHARED_EXPERTS)


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


def backward_temporaries(layer: LayerSpec, context: BlockContext, backward: BackwardContext) -> Bytes:
    """Gradient tensors alive at once inside a block's backward, beyond what its saved tensors free on the way.

    The widest point is the gated activation: gradients of its input (two widths) and output stand beside what is kept,
    while the down projection's input has just been freed, or recomputed with them; the residual gradient is alive
    throughout.
    """
    size = context.element_bytes
    hidden = context.hidden_size
    residual = context.tokens * hidden * context.residual_bytes // context.sequence_shards
    widest = 0
    if isinstance(layer.feed_forward, DenseSpec):
        widths = backward.num_gated_tensors if layer.feed_forward.is_gated else 1
        widest = widths * context.tokens * layer.feed_forward.intermediate_size * size // context.tp
    elif isinstance(layer.feed_forward, MoeSpec):
        moe = layer.feed_forward
        routed = context.tokens * moe.num_experts_per_tok // context.sequence_shards
        widest = routed * (2 * moe.moe_intermediate_size // context.expert_tp + hidden) * size
    if context.is_eager_attention and isinstance(layer.mixer, AttentionSpec):
        heads = layer.mixer.num_attention_heads / context.tp
        widest = most(widest, whole(2 * size * context.tokens * heads * context.seq_len))
    return (1 + backward.num_norms_remade) * residual + widest
