"""The model: every weight by name and shape, layer by layer, and the counts that follow from them.

A :class:`ModelSpec` is built by ``shardwise.families`` from a Hugging Face ``config.json``. Field names are those of
the configs. Nothing here estimates: a parameter count is the sum of the products of weight shapes.
"""

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Literal

Split = Literal["column", "row", "vocab", "replicated"]
"""How tensor parallelism divides a weight: by output dim, by input dim, by vocabulary row, or not at all."""

Role = Literal["matrix", "router", "norm", "bias", "embedding", "head", "convolution", "other"]
AttentionKind = Literal["mha", "mla"]
NormKind = Literal["layernorm", "rmsnorm"]
Stack = Literal["encoder", "decoder"]
Normed = Literal["inputs", "outputs", "both", "sums"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One parameter tensor of one layer."""

    name: str
    """Path inside its layer in the Hugging Face module tree, such as ``self_attn.q_proj.weight``."""
    shape: tuple[int, ...]
    """``(out, in)`` for matrices, ``(num_experts, out, in)`` for stacked experts, ``(n,)`` for vectors."""
    split: Split
    role: Role = "matrix"
    is_expert: bool = False
    """Routed expert weight: divided over expert-parallel ranks along its first dim. Shared experts are not."""
    split_limit: int | None = None
    """Most shards tensor parallelism can make of it (key-value heads); beyond that, shards are duplicated."""

    @property
    def num_params(self) -> int:
        """Elements of the tensor."""
        return prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether a token passes through it as a matrix product."""
        return len(self.shape) >= 2 and self.role in ("matrix", "router", "head")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Softmax attention: multi-head, grouped-query, multi-query or multi-head latent (MLA)."""

    kind: AttentionKind = "mha"
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    """Elements per query and key head; for MLA the sum of the rotary and the other part."""
    v_head_dim: int
    sliding_window: int | None = None
    is_causal: bool = True
    has_rotary: bool = True
    has_qk_norm: bool = False
    is_packed: bool = False
    """One product makes queries, keys and values, and values stay a view of it."""
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaSpec:
    """Selective state space mixer (Mamba 1 or 2)."""

    version: Literal[1, 2] = 1
    intermediate_size: int
    state_size: int
    conv_kernel: int
    time_step_rank: int
    num_heads: int = 0
    """Mamba 2 only."""
    is_delta_rule: bool = False
    """A gated delta net of the same state shape, whose state is corrected by every token and not only added to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseSpec:
    """A feed-forward block every token passes through."""

    intermediate_size: int
    hidden_act: str
    is_gated: bool
    is_packed: bool = False
    """One product makes the gate and what it multiplies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """A mixture-of-experts block."""

    num_experts: int
    num_experts_per_tok: int
    num_groups: int = 1
    """Groups of experts of which a router keeps ``num_groups_per_tok`` for a token and chooses inside them alone."""
    num_groups_per_tok: int = 1
    moe_intermediate_size: int
    """Width of one routed expert."""
    shared_intermediate_size: int
    """Summed width of the experts every token passes through; 0 without."""
    hidden_act: str
    is_gated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One block: at most one mixer, at most one feed-forward part, and all its weights."""

    stack: Stack = "decoder"
    mixer: AttentionSpec | MambaSpec | None
    feed_forward: DenseSpec | MoeSpec | None
    cross_attention: AttentionSpec | None = None
    norm: NormKind
    num_norms: int
    """Full-width norms (over ``hidden_size``) in the block; query and key norms are not counted."""
    normed: Normed = "inputs"
    """What full-width norms read: what enters attention and feed-forward, what leaves them (OLMo 2), both, or the sums
    with what leaves them (BERT, BART, OPT-350M)."""
    is_parallel: bool = False
    """Attention and feed-forward read the same input, through one norm or through two, and are added once (GPT-J, NeoX,
    Falcon, Cohere)."""
    weights: tuple[Weight, ...]

    @property
    def num_params(self) -> int:
        """All parameters of the block."""
        return sum(weight.num_params for weight in self.weights)

    @property
    def num_routed_params(self) -> int:
        """Parameters of routed experts, all of them."""
        return sum(weight.num_params for weight in self.weights if weight.is_expert)

    @property
    def num_active_params(self) -> int:
        """Parameters one token passes through: routed experts count ``num_experts_per_tok / num_experts``."""
        dense = self.num_params - self.num_routed_params
        if not isinstance(self.feed_forward, MoeSpec):
            return dense
        moe = self.feed_forward
        return dense + self.num_routed_params * moe.num_experts_per_tok // moe.num_experts


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A transformer (or hybrid) as data: embeddings, layers, final norm, head, and what hangs beside them."""

    name: str
    model_type: str
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    layers: tuple[LayerSpec, ...]
    """Every block in execution order; encoder blocks before decoder blocks."""
    embedding_weights: tuple[Weight, ...]
    """Token, position and type tables and whatever is applied before the first block."""
    final_weights: tuple[Weight, ...] = ()
    """Final norms and poolers, after the last block and before the head."""
    head_weights: tuple[Weight, ...] = ()
    """Output projection; empty when it is tied to the token table and has no bias."""
    side_weights: tuple[Weight, ...] = ()
    """Vision tower, projector, multi-token-prediction blocks: counted, not planned layer by layer."""
    tie_word_embeddings: bool = False
    has_head: bool = True
    """Whether the model produces logits over the vocabulary."""
    attention_dropout_fraction: float = 0.0
    hidden_dropout_fraction: float = 0.0
    spec_json: str = ""
    """What the model was read from (a catalogue name or a config), as canonical JSON, so that a plan can carry it."""
    assumptions: tuple[str, ...] = field(default=(), compare=False)
    """Sentences for the user: what was assumed because the config did not say it. Not part of the model's identity."""

    def __repr__(self) -> str:
        """The name and the exact number of parameters, not every weight."""
        return f"ModelSpec({self.name}, {self.num_params:,} parameters)"

    @property
    def num_hidden_layers(self) -> int:
        """Blocks, encoder and decoder together."""
        return len(self.layers)

    @cached_property
    def num_params(self) -> int:
        """All parameters, a tied table counted once."""
        outside = self.embedding_weights + self.final_weights + self.head_weights + self.side_weights
        return sum(weight.num_params for weight in outside) + sum(
            layer.num_params * count for layer, count in self.layer_runs
        )

    @cached_property
    def num_embedding_params(self) -> int:
        """The input token table (position tables are not counted here)."""
        return sum(w.num_params for w in self.embedding_weights if w.role == "embedding" and w.split == "vocab")

    @cached_property
    def num_side_params(self) -> int:
        """Vision tower, projector and other attachments."""
        return sum(weight.num_params for weight in self.side_weights)

    @cached_property
    def num_routed_params(self) -> int:
        """Routed expert parameters, all of them."""
        return sum(layer.num_routed_params * count for layer, count in self.layer_runs)

    @cached_property
    def num_active_params(self) -> int:
        """Parameters one token passes through, embeddings included."""
        outside = self.embedding_weights + self.final_weights + self.head_weights + self.side_weights
        return sum(weight.num_params for weight in outside) + sum(
            layer.num_active_params * count for layer, count in self.layer_runs
        )

    @cached_property
    def is_moe(self) -> bool:
        """Whether any block routes tokens to experts."""
        return any(isinstance(layer.feed_forward, MoeSpec) for layer, _ in self.layer_runs)

    @cached_property
    def moe(self) -> MoeSpec | None:
        """The first mixture-of-experts block's shape."""
        return next((la.feed_forward for la in self.layers if isinstance(la.feed_forward, MoeSpec)), None)

    @cached_property
    def attention(self) -> AttentionSpec | None:
        """The first attention block's shape; ``None`` for a pure state space model."""
        return next((layer.mixer for layer in self.layers if isinstance(layer.mixer, AttentionSpec)), None)

    @cached_property
    def attention_shapes(self) -> tuple[AttentionSpec, ...]:
        """Every distinct attention shape, cross-attention included."""
        mixers = [mixer for layer, _ in self.layer_runs for mixer in (layer.mixer, layer.cross_attention)]
        return tuple(dict.fromkeys(mixer for mixer in mixers if isinstance(mixer, AttentionSpec)))

    @cached_property
    def mamba_shapes(self) -> tuple[MambaSpec, ...]:
        """Every distinct state space mixer."""
        return tuple(dict.fromkeys(la.mixer for la, _ in self.layer_runs if isinstance(la.mixer, MambaSpec)))

    @cached_property
    def dense_shapes(self) -> tuple[DenseSpec, ...]:
        """Every distinct dense feed-forward shape."""
        blocks = [layer.feed_forward for layer, _ in self.layer_runs]
        return tuple(dict.fromkeys(block for block in blocks if isinstance(block, DenseSpec)))

    @cached_property
    def moe_shapes(self) -> tuple[MoeSpec, ...]:
        """Every distinct mixture-of-experts shape."""
        blocks = [layer.feed_forward for layer, _ in self.layer_runs]
        return tuple(dict.fromkeys(block for block in blocks if isinstance(block, MoeSpec)))

    @cached_property
    def layer_runs(self) -> tuple[tuple[LayerSpec, int], ...]:
        """Consecutive identical blocks as ``(layer, how many)``, in order."""
        runs: list[tuple[LayerSpec, int]] = []
        for layer in self.layers:
            if runs and (runs[-1][0] is layer or runs[-1][0] == layer):
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((layer, 1))
        return tuple(runs)
