"""Selective state spaces (Mamba 1 and 2) and gated delta nets: the mixers, and the models made of nothing else."""

from dataclasses import dataclass, replace
from math import ceil

from shardwise.families.assembly import head_dim_of, language_head, language_model, num_layers, repeat_layers
from shardwise.families.blocks import Weights, convolution, norm, projection, token_table, vector
from shardwise.families.config import Flag, ModelConfig
from shardwise.model import AttentionSpec, LayerSpec, MambaSpec, ModelSpec, Weight


@dataclass(frozen=True, slots=True)
class Mixer:
    """The first half of a block."""

    spec: AttentionSpec | MambaSpec
    weights: Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaFields:
    """Which config fields hold the sizes of a Mamba mixer in one family."""

    state: str = "mamba_d_state"
    conv: str = "mamba_d_conv"
    expand: str = "mamba_expand"
    width: str = ""
    """The field of the inner width itself, in families that have one."""
    rank: str = "mamba_dt_rank"
    heads: str = "mamba_n_heads"
    head_dim: str = "mamba_d_head"
    groups: str = "mamba_n_groups"
    bias: Flag = "mamba_proj_bias"
    conv_bias: Flag = "mamba_conv_bias"


HYBRID_FIELDS = MambaFields()
MAMBA_FIELDS = MambaFields(
    state="state_size",
    conv="conv_kernel",
    expand="expand",
    rank="time_step_rank",
    heads="num_heads",
    head_dim="head_dim",
    groups="n_groups",
    bias="use_bias",
    conv_bias="use_conv_bias",
)


def expanded_size(config: ModelConfig, fields: MambaFields) -> int:
    """Inner width of a Mamba mixer: its own field where the family has one, or the expansion times the hidden size."""
    width = config.optional_count(fields.width) if fields.width else None
    return width or max(1, int(config.number(fields.expand, otherwise=2.0) * config.count("hidden_size")))


def mamba1(config: ModelConfig, prefix: str, fields: MambaFields, *, has_inner_norms: bool = False) -> Mixer:
    """Mamba 1: input-dependent step, B and C from one low-rank projection.

    Source: Gu and Dao 2023, arXiv:2312.00752, figure 3. Jamba adds norms on step, B and C (``has_inner_norms``).
    """
    hidden_size, inner = config.count("hidden_size"), expanded_size(config, fields)
    state, kernel = config.count(fields.state), config.count(fields.conv)
    rank = ceil(hidden_size / 16) if config.value(fields.rank) == "auto" else config.count(fields.rank)
    bias, conv_bias = config.flag(fields.bias), config.flag(fields.conv_bias)
    weights = (
        projection(f"{prefix}.in_proj", (2 * inner, hidden_size), "column", bias=bias)
        + convolution(f"{prefix}.conv1d", (inner, 1, kernel), bias=conv_bias)
        + projection(f"{prefix}.x_proj", (rank + 2 * state, inner), "row")
        + projection(f"{prefix}.dt_proj", (inner, rank), "column", bias=True)
        + (Weight(name=f"{prefix}.A_log", shape=(inner, state), split="column", role="other"),)
        + vector(f"{prefix}.D", inner, split="column")
        + projection(f"{prefix}.out_proj", (hidden_size, inner), "row", bias=bias)
    )
    if has_inner_norms:
        weights += norm(f"{prefix}.dt_layernorm", rank)
        weights += norm(f"{prefix}.b_layernorm", state) + norm(f"{prefix}.c_layernorm", state)
    spec = MambaSpec(version=1, intermediate_size=inner, state_size=state, conv_kernel=kernel, time_step_rank=rank)
    return Mixer(spec, weights)


def mamba2(config: ModelConfig, prefix: str, fields: MambaFields, *, inner: int) -> Mixer:
    """Mamba 2: one scalar decay per head, B and C shared by groups of heads, a gated norm before the output.

    Source: Dao and Gu 2024, arXiv:2405.21060, section 7.
    """
    hidden_size, heads = config.count("hidden_size"), config.count(fields.heads)
    state, kernel = config.count(fields.state), config.count(fields.conv)
    mixed = inner + 2 * config.count(fields.groups) * state
    bias, conv_bias = config.flag(fields.bias), config.flag(fields.conv_bias)
    weights = (
        projection(f"{prefix}.in_proj", (inner + mixed + heads, hidden_size), "column", bias=bias)
        + convolution(f"{prefix}.conv1d", (mixed, 1, kernel), bias=conv_bias)
        + vector(f"{prefix}.dt_bias", heads, split="column", role="bias")
        + vector(f"{prefix}.A_log", heads, split="column")
        + vector(f"{prefix}.D", heads, split="column")
        + norm(f"{prefix}.norm", inner, split="column")
        + projection(f"{prefix}.out_proj", (hidden_size, inner), "row", bias=bias)
    )
    spec = MambaSpec(
        version=2,
        intermediate_size=inner,
        state_size=state,
        conv_kernel=kernel,
        time_step_rank=0,
        num_heads=heads,
    )
    return Mixer(spec, weights)


def gated_delta_net(config: ModelConfig, *, has_joint_inputs: bool) -> Mixer:
    """Gated delta net, the linear attention of Qwen3-Next and Qwen3.5, described as a Mamba 2 mixer of its state shape.

    Source: Yang et al. 2024, arXiv:2412.06464. ``has_joint_inputs``: query, key, value and gate come from one matrix.
    """
    hidden_size, kernel = config.count("hidden_size"), config.count("linear_conv_kernel_dim")
    key_dim, value_dim = config.count("linear_key_head_dim"), config.count("linear_value_head_dim")
    value_heads = config.count("linear_num_value_heads")
    keys, values = config.count("linear_num_key_heads") * key_dim, value_heads * value_dim
    inputs = (
        (("in_proj_qkvz", 2 * keys + 2 * values), ("in_proj_ba", 2 * value_heads))
        if has_joint_inputs
        else (
            ("in_proj_qkv", 2 * keys + values),
            ("in_proj_z", values),
            ("in_proj_b", value_heads),
            ("in_proj_a", value_heads),
        )
    )
    weights: Weights = ()
    for name, size in inputs:
        weights += projection(f"linear_attn.{name}", (size, hidden_size), "column")
    weights += (
        convolution("linear_attn.conv1d", (2 * keys + values, 1, kernel))
        + vector("linear_attn.dt_bias", value_heads, split="column", role="bias")
        + vector("linear_attn.A_log", value_heads, split="column")
        + norm("linear_attn.norm", value_dim)
        + projection("linear_attn.out_proj", (hidden_size, values), "row")
    )
    spec = MambaSpec(
        version=2,
        intermediate_size=values,
        state_size=key_dim,
        conv_kernel=kernel,
        time_step_rank=0,
        num_heads=value_heads,
        is_delta_rule=True,
    )
    return Mixer(spec, weights)


def lightning_attention(config: ModelConfig) -> Mixer:
    """Lightning attention, the linear attention of MiniMax-01, described as a Mamba 2 mixer of its state shape.

    Source: MiniMax 2025, arXiv:2501.08313, section 2.2; transformers 5.24.0, ``MiniMaxLightningAttention``.
    """
    hidden_size, heads, head_dim = config.count("hidden_size"), config.count("num_attention_heads"), head_dim_of(config)
    inner = heads * head_dim
    weights = (
        projection("self_attn.qkv_proj", (3 * inner, hidden_size), "column")
        + projection("self_attn.output_gate", (inner, hidden_size), "column")
        + norm("self_attn.norm", inner, split="column")
        + projection("self_attn.out_proj", (hidden_size, inner), "row")
    )
    spec = MambaSpec(
        version=2, intermediate_size=inner, state_size=head_dim, conv_kernel=1, time_step_rank=0, num_heads=heads
    )
    return Mixer(spec, weights)


def mamba(config: ModelConfig) -> ModelSpec:
    """Mamba and Falcon Mamba: nothing but Mamba 1 mixers, as wide as ``intermediate_size`` says where it is given."""
    return _pure(config, mamba1(config, "mixer", replace(MAMBA_FIELDS, width="intermediate_size")))


def mamba_2(config: ModelConfig) -> ModelSpec:
    """Mamba 2: nothing but Mamba 2 mixers."""
    return _pure(config, mamba2(config, "mixer", MAMBA_FIELDS, inner=expanded_size(config, MAMBA_FIELDS)))


def _pure(config: ModelConfig, mixer: Mixer) -> ModelSpec:
    hidden_size = config.count("hidden_size")
    layer = LayerSpec(
        mixer=mixer.spec,
        feed_forward=None,
        norm="rmsnorm",
        num_norms=1,
        weights=norm("norm", hidden_size) + mixer.weights,
    )
    return language_model(
        config,
        layers=repeat_layers((None,) * num_layers(config), lambda _: layer),
        embeddings=token_table("backbone.embeddings", config.count("vocab_size"), hidden_size),
        final=norm("backbone.norm_f", hidden_size),
        head=language_head(config, "lm_head", hidden_size),
    )
