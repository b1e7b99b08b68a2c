"""Decoders with routed experts, each one as an attention style, an expert style and a rule for where experts sit."""

from dataclasses import replace

from shardwise.families.assembly import num_layers
from shardwise.families.blocks import MlpNames, Weights, projection, vector
from shardwise.families.config import ModelConfig
from shardwise.families.decoder import LLAMA, DenseDecoder, FeedForward, Sparse, SparseDecoder
from shardwise.families.experts import (
    ExpertStyle,
    SharedExpert,
    after_first_dense,
    by_sparse_step,
    every_layer,
    expert_part,
    n_shared_width,
    shared_expert_weights,
    sparse,
)
from shardwise.families.gpt_styles import LAYERNORM, OUT_PROJ
from shardwise.families.llama_styles import ERNIE4_5, HUNYUAN, MISTRAL, NO_BIAS, OLMO2, QWEN2, QWEN3
from shardwise.model import AttentionSpec, DenseSpec, ModelSpec, MoeSpec


def _llama4_rule(config: ModelConfig) -> tuple[bool, ...]:
    """The blocks of ``moe_layers``, or every ``interleave_moe_layer_step``-th one."""
    listed = config.counts("moe_layers")
    if listed is not None:
        sparse_layers = frozenset(listed)
        return tuple(index in sparse_layers for index in range(num_layers(config)))
    step = config.count("interleave_moe_layer_step")
    return tuple((index + 1) % step == 0 for index in range(num_layers(config)))


def _ernie_rule(config: ModelConfig) -> tuple[bool, ...]:
    """Every ``moe_layer_interval``-th block between two indices; -1 stands for the last block."""
    count, last = num_layers(config), config.value("moe_layer_end_index")
    end = count - 1 if last in (None, -1) else config.count_or_zero("moe_layer_end_index")
    start, interval = config.count_or_zero("moe_layer_start_index"), config.count_or("moe_layer_interval", 1)
    return tuple(start <= index <= end and (index + 1) % interval == 0 for index in range(count))


def _after_num_dense(config: ModelConfig) -> tuple[bool, ...]:
    first = config.count_or_zero("num_dense_layers")
    return tuple(index >= first for index in range(num_layers(config)))


def _llama4_shared_width(config: ModelConfig) -> int:
    return config.count("intermediate_size")


def _qwen_shared_width(config: ModelConfig) -> int:
    return config.count_or_zero("shared_expert_intermediate_size")


def _granite_shared_width(config: ModelConfig) -> int:
    return config.count_or_zero("shared_intermediate_size")


def _hunyuan_shared_width(config: ModelConfig) -> int:
    return config.count_or("n_shared_experts", 1) * config.count("intermediate_size")


def _sinks(_: ModelConfig, attention: AttentionSpec) -> Weights:
    """One learned sink per head (gpt-oss)."""
    return vector("self_attn.sinks", attention.num_attention_heads, split="column")


def _output_gate(config: ModelConfig, attention: AttentionSpec) -> Weights:
    """A gate on the attention output, as wide as the queries (AFMoE)."""
    width = attention.num_attention_heads * attention.head_dim
    return projection("self_attn.gate_proj", (width, config.count("hidden_size")), "column")


SHARED_EXPERTS = SharedExpert(name="shared_experts", width=n_shared_width)
QWEN_SHARED = SharedExpert(name="shared_expert", width=_qwen_shared_width, gate="shared_expert_gate")
GRANITE_SHARED = SharedExpert(
    name="shared_mlp", width=_granite_shared_width, names=MlpNames(fused="input_linear", down="output_linear")
)
DEEPSEEK_EXPERTS = ExpertStyle(shared=SHARED_EXPERTS)
QWEN_EXPERTS = ExpertStyle(shared=QWEN_SHARED)
GRANITE_EXPERTS = ExpertStyle(prefix="block_sparse_moe", router="router", width="intermediate_size")


_DENSE_WIDTH = ExpertStyle(width="intermediate_size")

MIXTRAL = SparseDecoder(MISTRAL, sparse(_DENSE_WIDTH))
PHIMOE = SparseDecoder(
    replace(LAYERNORM, head_bias="lm_head_bias", window="always"),
    sparse(replace(_DENSE_WIDTH, router="router")),
)
QWEN2_MOE = SparseDecoder(replace(QWEN2, qkv_bias="qkv_bias"), sparse(QWEN_EXPERTS, by_sparse_step))
QWEN3_MOE = SparseDecoder(QWEN3, sparse(ExpertStyle(), by_sparse_step))
OLMOE = SparseDecoder(replace(LLAMA, qk_norm="full", mlp_bias=False), sparse(_DENSE_WIDTH))
FLEX_OLMO = SparseDecoder(OLMO2, sparse(_DENSE_WIDTH))
LLAMA4 = SparseDecoder(
    replace(LLAMA, mlp_prefix="feed_forward", mlp_width="intermediate_size_mlp", window="chunked", rotary="listed"),
    sparse(
        ExpertStyle(
            prefix="feed_forward",
            router="router",
            width="intermediate_size",
            shared=SharedExpert(name="shared_expert", width=_llama4_shared_width),
        ),
        _llama4_rule,
    ),
)
GPT_OSS = SparseDecoder(
    replace(LLAMA, window="periodic", window_period=2, extras=_sinks),
    sparse(replace(_DENSE_WIDTH, router="router", router_bias=True, expert_bias=True)),
)
_GLM4_MOE = SparseDecoder(
    replace(LLAMA, output_bias=False, mlp_bias=False, qk_norm="head", has_qk_norm="use_qk_norm"),
    sparse(DEEPSEEK_EXPERTS, after_first_dense),
)
SOLAR_OPEN = SparseDecoder(replace(LLAMA, output_bias=False), sparse(DEEPSEEK_EXPERTS))
DOTS1 = SparseDecoder(replace(QWEN3), sparse(DEEPSEEK_EXPERTS, after_first_dense))
DEEPSEEK_V1 = SparseDecoder(LLAMA, sparse(DEEPSEEK_EXPERTS, after_first_dense))
EXAONE_MOE = SparseDecoder(
    replace(NO_BIAS, qk_norm="head", window="periodic", window_period="sliding_window_pattern", rotary="windowed"),
    sparse(DEEPSEEK_EXPERTS, after_first_dense),
)
ERNIE4_5_MOE = SparseDecoder(
    replace(ERNIE4_5, head_bias="use_bias"),
    sparse(
        ExpertStyle(
            correction_bias="gate.moe_statics.e_score_correction_bias",
            shared=replace(SHARED_EXPERTS, bias="use_bias"),
        ),
        _ernie_rule,
    ),
)
HUNYUAN_MOE = SparseDecoder(
    HUNYUAN,
    sparse(
        replace(_DENSE_WIDTH, router="gate.wg", shared=SharedExpert(name="shared_mlp", width=_hunyuan_shared_width))
    ),
)
MINIMAX_M2 = SparseDecoder(replace(NO_BIAS, qk_norm="full"), sparse(_DENSE_WIDTH))
AFMOE = SparseDecoder(
    replace(
        LLAMA,
        mlp_bias=False,
        norms=("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"),
        qk_norm="head",
        extras=_output_gate,
        window="periodic",
        window_period="global_attn_every_n_layers",
        rotary="windowed",
    ),
    sparse(ExpertStyle(router="router.gate", correction_bias="expert_bias", shared=SHARED_EXPERTS), _after_num_dense),
)


def minicpm(config: ModelConfig) -> ModelSpec:
    """MiniCPM: Llama with scaled residuals; the MoE variant has Mixtral's experts in every block."""
    if config.count_or_zero("num_experts") > 1:
        return SparseDecoder(LLAMA, sparse(_DENSE_WIDTH))(config)
    return DenseDecoder(LLAMA)(config)


def glm4_moe(config: ModelConfig) -> ModelSpec:
    """GLM 4.5: heads have a width of their own; where the config gives none, the even share is rounded down.

    transformers does the same with its own defaults, 4,096 over 96 heads of 42.
    """
    if config.value("head_dim") is None:
        config = config.with_values(head_dim=config.count("hidden_size") // config.count("num_attention_heads"))
    return _GLM4_MOE(config)


def granite_moe(config: ModelConfig) -> ModelSpec:
    """Granite MoE: experts in every block, and in the shared variant a feed-forward part beside them."""
    return SparseDecoder(LLAMA, Sparse(layers=every_layer, experts=granite_feed_forward))(config)


def granite_feed_forward(config: ModelConfig) -> FeedForward:
    """Routed experts with a shared part beside them; only the shared part when there are no experts."""
    shared = shared_expert_weights(config, ExpertStyle(prefix="", shared=GRANITE_SHARED))
    width = _granite_shared_width(config)
    if not config.count_or_zero("num_experts"):
        dense = DenseSpec(intermediate_size=width, hidden_act=config.text("hidden_act"), is_gated=True)
        return FeedForward(dense, shared)
    routed = expert_part(config, GRANITE_EXPERTS)
    if not isinstance(routed.spec, MoeSpec):
        return routed
    return FeedForward(replace(routed.spec, shared_intermediate_size=width), routed.weights + shared)


def dbrx(config: ModelConfig) -> ModelSpec:
    """DBRX: one fused QKV matrix, no biases."""
    style = replace(
        NO_BIAS,
        unread=("head_dim",),
        tokens="transformer.wte",
        final_norm="transformer.norm_f",
        norm="layernorm",
        norms=("norm_attn_norm.norm_1", "norm_attn_norm.norm_2"),
        attention_prefix="norm_attn_norm.attn",
        attention=OUT_PROJ,
        fused_qkv="Wqkv",
    )
    return SparseDecoder(style, sparse(ExpertStyle(prefix="ffn", router="router.layer")))(config)
