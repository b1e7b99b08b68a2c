"""Building blocks: the weights of projections, norms, attention, feed-forward parts and experts, with their TP split.

Every function returns a tuple of :class:`Weight`, so that a layer is a sum of blocks. Column-parallel projections carry
their bias with them; biases of row-parallel projections, norms, routers and low-rank down-projections are replicated.
"""

from dataclasses import dataclass, replace
from typing import Literal

from shardwise.model import AttentionSpec, Role, Split, Weight

Weights = tuple[Weight, ...]
QkNorm = Literal["head", "every_head", "full"]
"""Query and key norms: one vector shared by all heads, one vector for each head, or one over all heads together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionNames:
    """What a family calls the four projections and the two norms."""

    query: str = "q_proj"
    key: str = "k_proj"
    value: str = "v_proj"
    output: str = "o_proj"
    query_norm: str = "q_norm"
    key_norm: str = "k_norm"


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpNames:
    """What a family calls the feed-forward projections; ``gate`` is empty when there is none."""

    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    fused: str = ""
    """Gate and up projections held as one matrix of this name."""


OUTPUT_NORMS = frozenset(("post_feedforward_layernorm", "post_mlp_layernorm"))
"""Names of norms behind the feed-forward part; with one of them there is one behind attention."""
LLAMA_ATTENTION = AttentionNames()
LLAMA_MLP = MlpNames()


def projection(
    name: str, shape: tuple[int, int], split: Split, *, bias: bool = False, split_limit: int | None = None
) -> Weights:
    """A matrix of ``shape`` ``(out, in)`` and, when asked for, its bias ``(out,)``."""
    matrix = Weight(name=f"{name}.weight", shape=shape, split=split, split_limit=split_limit)
    if not bias:
        return (matrix,)
    bias_split: Split = "replicated" if split == "row" else split
    shift = Weight(name=f"{name}.bias", shape=shape[:1], split=bias_split, role="bias", split_limit=split_limit)
    return (matrix, shift)


def norm(name: str, size: int, *, bias: bool = False, split: Split = "replicated") -> Weights:
    """A norm's scale ``(size,)`` and, for LayerNorm with bias, its shift."""
    scale = Weight(name=f"{name}.weight", shape=(size,), split=split, role="norm")
    if not bias:
        return (scale,)
    return (scale, Weight(name=f"{name}.bias", shape=(size,), split=split, role="norm"))


def norms(names: tuple[str, ...], size: int, *, bias: bool = False) -> Weights:
    """Several norms of one size."""
    return tuple(weight for name in names for weight in norm(name, size, bias=bias))


def vector(name: str, size: int, *, split: Split = "replicated", role: Role = "other") -> Weights:
    """A bare vector: attention sinks, decay rates, gates."""
    return (Weight(name=name, shape=(size,), split=split, role=role),)


def token_table(name: str, vocab_size: int, hidden_size: int) -> Weights:
    """The input token table ``(vocab_size, hidden_size)``."""
    return (Weight(name=f"{name}.weight", shape=(vocab_size, hidden_size), split="vocab", role="embedding"),)


def position_table(name: str, positions: int, hidden_size: int) -> Weights:
    """A learned position or type table, replicated under tensor parallelism."""
    return (Weight(name=f"{name}.weight", shape=(positions, hidden_size), split="replicated", role="embedding"),)


def output_head(name: str, vocab_size: int, hidden_size: int, *, is_tied: bool, bias: bool = False) -> Weights:
    """The projection to logits; only its bias when it shares the token table."""
    matrix = Weight(name=f"{name}.weight", shape=(vocab_size, hidden_size), split="vocab", role="head")
    shift = Weight(name=f"{name}.bias", shape=(vocab_size,), split="vocab", role="bias")
    return (() if is_tied else (matrix,)) + ((shift,) if bias else ())


def convolution(name: str, shape: tuple[int, ...], *, bias: bool = False, split: Split = "column") -> Weights:
    """A convolution kernel and its bias; depthwise kernels split by channel like a column-parallel projection."""
    kernel = Weight(name=f"{name}.weight", shape=shape, split=split, role="convolution")
    if not bias:
        return (kernel,)
    return (kernel, Weight(name=f"{name}.bias", shape=shape[:1], split=split, role="bias"))


def attention_weights(
    prefix: str,
    attention: AttentionSpec,
    hidden_size: int,
    *,
    names: AttentionNames = LLAMA_ATTENTION,
    qkv_bias: bool = False,
    output_bias: bool = False,
) -> Weights:
    """Separate query, key, value and output projections of multi-head or grouped-query attention."""
    heads, kv_heads = attention.num_attention_heads, attention.num_key_value_heads
    query = (heads * attention.head_dim, hidden_size)
    key, value = (kv_heads * attention.head_dim, hidden_size), (kv_heads * attention.v_head_dim, hidden_size)
    output = (hidden_size, heads * attention.v_head_dim)
    return (
        projection(f"{prefix}.{names.query}", query, "column", bias=qkv_bias)
        + projection(f"{prefix}.{names.key}", key, "column", bias=qkv_bias, split_limit=kv_heads)
        + projection(f"{prefix}.{names.value}", value, "column", bias=qkv_bias, split_limit=kv_heads)
        + projection(f"{prefix}.{names.output}", output, "row", bias=output_bias)
    )


def fused_qkv_weights(name: str, attention: AttentionSpec, hidden_size: int, *, bias: bool = False) -> Weights:
    """One matrix for query, key and value.

    With fewer key-value heads than query heads the matrix is listed in its two parts, ``[query]`` and ``[key_value]``,
    because tensor parallelism can divide them into different numbers of shards.
    """
    heads, kv_heads = attention.num_attention_heads, attention.num_key_value_heads
    query_size, kv_size = heads * attention.head_dim, 2 * kv_heads * attention.head_dim
    if heads == kv_heads:
        return projection(name, (query_size + kv_size, hidden_size), "column", bias=bias)
    query = projection(name, (query_size, hidden_size), "column", bias=bias)
    key_value = projection(name, (kv_size, hidden_size), "column", bias=bias, split_limit=kv_heads)
    return _parts(query, "query") + _parts(key_value, "key_value")


def _parts(weights: Weights, part: str) -> Weights:
    return tuple(replace(weight, name=f"{weight.name}[{part}]") for weight in weights)


def qk_norm_weights(
    prefix: str, attention: AttentionSpec, kind: QkNorm, *, names: AttentionNames = LLAMA_ATTENTION, bias: bool = False
) -> Weights:
    """Norms of queries and keys before the attention product."""
    head_dim = attention.head_dim
    sides = ((names.query_norm, attention.num_attention_heads), (names.key_norm, attention.num_key_value_heads))
    found: Weights = ()
    for name, heads in sides:
        size = heads * head_dim if kind == "full" else head_dim
        scale = norm(f"{prefix}.{name}", size, bias=bias)
        if kind == "every_head":
            scale = (Weight(name=scale[0].name, shape=(heads, head_dim), split="replicated", role="norm"),)
        found += scale
    return found


def mla_weights(prefix: str, attention: AttentionSpec, hidden_size: int, *, bias: bool = False) -> Weights:
    """Multi-head latent attention: low-rank down-projections (replicated), per-head up-projections (column).

    Source: DeepSeek-AI 2024, arXiv:2405.04434, section 2.1. A ``q_lora_rank`` of ``None`` projects queries directly.
    """
    heads, rope_dim = attention.num_attention_heads, attention.qk_rope_head_dim or 0
    kv_rank, q_rank = attention.kv_lora_rank or 0, attention.q_lora_rank
    query_size = heads * attention.head_dim
    if q_rank is None:
        query = projection(f"{prefix}.q_proj", (query_size, hidden_size), "column")
    else:
        query = (
            projection(f"{prefix}.q_a_proj", (q_rank, hidden_size), "replicated", bias=bias)
            + norm(f"{prefix}.q_a_layernorm", q_rank)
            + projection(f"{prefix}.q_b_proj", (query_size, q_rank), "column")
        )
    key_value_size = heads * (attention.head_dim - rope_dim + attention.v_head_dim)
    return (
        query
        + projection(f"{prefix}.kv_a_proj_with_mqa", (kv_rank + rope_dim, hidden_size), "replicated", bias=bias)
        + norm(f"{prefix}.kv_a_layernorm", kv_rank)
        + projection(f"{prefix}.kv_b_proj", (key_value_size, kv_rank), "column")
        + projection(f"{prefix}.o_proj", (hidden_size, heads * attention.v_head_dim), "row", bias=bias)
    )


def mlp_weights(
    prefix: str, hidden_size: int, intermediate_size: int, *, names: MlpNames = LLAMA_MLP, bias: bool = False
) -> Weights:
    """A feed-forward part: gate (when named) and up projections in, down projection out."""
    inner = (intermediate_size, hidden_size)
    if names.fused:
        into = projection(_join(prefix, names.fused), (2 * intermediate_size, hidden_size), "column", bias=bias)
    else:
        gate = projection(_join(prefix, names.gate), inner, "column", bias=bias) if names.gate else ()
        into = gate + projection(_join(prefix, names.up), inner, "column", bias=bias)
    return into + projection(_join(prefix, names.down), (hidden_size, intermediate_size), "row", bias=bias)


def expert_weights(
    prefix: str, num_experts: int, hidden_size: int, width: int, *, is_gated: bool = True, bias: bool = False
) -> Weights:
    """Routed experts, stacked as ``(num_experts, out, in)``; gate and up are listed apart where files fuse them."""
    inputs = ("gate_proj", "up_proj") if is_gated else ("up_proj",)
    into, out = (num_experts, width, hidden_size), (num_experts, hidden_size, width)
    weights = tuple(_stacked(f"{prefix}.{name}", into, "column") for name in inputs)
    weights += (_stacked(f"{prefix}.down_proj", out, "row"),)
    if bias:
        weights += tuple(_stacked(f"{prefix}.{name}_bias", into[:2], "column", role="bias") for name in inputs)
        weights += (_stacked(f"{prefix}.down_proj_bias", out[:2], "replicated", role="bias"),)
    return weights


def router_weights(name: str, num_experts: int, hidden_size: int, *, bias: bool = False) -> Weights:
    """The router: one score per expert, computed whole on every rank."""
    matrix = Weight(name=f"{name}.weight", shape=(num_experts, hidden_size), split="replicated", role="router")
    if not bias:
        return (matrix,)
    return (matrix, Weight(name=f"{name}.bias", shape=(num_experts,), split="replicated", role="bias"))


def _stacked(name: str, shape: tuple[int, ...], split: Split, *, role: Role = "matrix") -> Weight:
    return Weight(name=name, shape=shape, split=split, role=role, is_expert=True)


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name
