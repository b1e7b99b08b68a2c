"""Decoders of the Llama lineage, each one as its differences from Llama."""

from dataclasses import replace

from shardwise.families.blocks import AttentionNames, MlpNames, Weights, vector
from shardwise.families.config import ModelConfig
from shardwise.families.decoder import LLAMA
from shardwise.families.gpt_styles import C_FC, LAYERNORM, UP_DOWN
from shardwise.model import AttentionSpec

FUSED_GATE = MlpNames(fused="gate_up_proj")
SANDWICH_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
POST_NORMS = ("post_attention_layernorm", "post_feedforward_layernorm")


def _xielu_slopes(_: ModelConfig, __: AttentionSpec) -> Weights:
    """The two trained scalars of Apertus's xIELU activation."""
    return vector("mlp.act_fn.alpha_p", 1) + vector("mlp.act_fn.alpha_n", 1)


NO_BIAS = replace(LLAMA, qkv_bias=False, output_bias=False, mlp_bias=False)

MISTRAL = replace(NO_BIAS, window="always")
CWM = replace(NO_BIAS, mlp_bias="mlp_bias", window="periodic_first", window_period=4)
QWEN2 = replace(NO_BIAS, qkv_bias=True, window="late")
QWEN3 = replace(LLAMA, mlp_bias=False, qk_norm="head", window="late")
GEMMA = replace(LLAMA, mlp_bias=False)
GEMMA2 = replace(GEMMA, norms=SANDWICH_NORMS, window="periodic", window_period=2)
GEMMA3 = replace(GEMMA2, qk_norm="head", window_period="sliding_window_pattern")
VAULTGEMMA = replace(GEMMA2, norms=("input_layernorm", "pre_feedforward_layernorm"))
PHI3 = replace(MISTRAL, fused_qkv="qkv_proj", mlp=FUSED_GATE)
OLMO = replace(LLAMA, norm="layernorm", has_norm_weights=False, mlp_bias=False)
OLMO2 = replace(LLAMA, norms=POST_NORMS, qk_norm="full", mlp_bias=False)
OLMO3 = replace(OLMO2, window="periodic", window_period=4)
STABLELM = replace(
    LAYERNORM,
    unread=("head_dim",),
    is_parallel="use_parallel_residual",
    parallel_norms=("input_layernorm",),
    attention=AttentionNames(query_norm="q_layernorm", key_norm="k_layernorm"),
    qkv_bias="use_qkv_bias",
    output_bias=False,
    qk_norm="every_head",
    has_qk_norm="qk_layernorm",
    mlp_bias=False,
)
STARCODER2 = replace(
    LAYERNORM, qkv_bias="use_bias", output_bias="use_bias", mlp=C_FC, mlp_bias="use_bias", window="always"
)
COHERE = replace(
    LLAMA,
    norm="layernorm",
    norms=("input_layernorm",),
    is_parallel=True,
    qk_norm="every_head",
    has_qk_norm="use_qk_norm",
    mlp_bias=False,
)
COHERE2 = replace(COHERE, qk_norm=None, window="periodic", window_period="sliding_window_pattern", rotary="windowed")
GLM = replace(LLAMA, output_bias=False, mlp=FUSED_GATE, mlp_bias=False)
GLM4 = replace(
    GLM, norms=("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm")
)
SMOLLM3 = replace(LLAMA, window="late", rotary="listed")
ERNIE4_5 = replace(LLAMA, qkv_bias="use_bias", output_bias="use_bias", mlp_bias="use_bias")
EXAONE4 = replace(
    NO_BIAS,
    norms=POST_NORMS,
    qk_norm="head",
    window="periodic",
    window_period="sliding_window_pattern",
    rotary="windowed",
)
NEMOTRON = replace(LAYERNORM, mlp=UP_DOWN)
SEED_OSS = replace(LLAMA, output_bias="attention_out_bias")
HELIUM = replace(LLAMA, output_bias=False)
ARCEE = replace(LLAMA, mlp=UP_DOWN)
APERTUS = replace(
    LLAMA,
    norms=("attention_layernorm", "feedforward_layernorm"),
    qk_norm="head",
    mlp=UP_DOWN,
    mlp_bias=False,
    extras=_xielu_slopes,
)
HUNYUAN = replace(
    LLAMA,
    attention=AttentionNames(query_norm="query_layernorm", key_norm="key_layernorm"),
    qk_norm="head",
    mlp_bias=False,
)
JAIS2 = replace(LAYERNORM, mlp=UP_DOWN)
QWEN1 = replace(
    NO_BIAS,
    tokens="transformer.wte",
    final_norm="transformer.ln_f",
    norms=("ln_1", "ln_2"),
    attention_prefix="attn",
    attention=AttentionNames(output="c_proj"),
    fused_qkv="c_attn",
    qkv_bias=True,
    mlp=MlpNames(gate="w1", up="w2", down="c_proj"),
)
ORION = replace(LAYERNORM, qkv_bias=False, output_bias=False, mlp_bias=False)
BAICHUAN = replace(NO_BIAS, fused_qkv="W_pack")
INTERNLM = replace(NO_BIAS, qkv_bias="bias", output_bias="bias")
INTERNLM2 = replace(
    INTERNLM,
    tokens="model.tok_embeddings",
    head="output",
    norms=("attention_norm", "ffn_norm"),
    attention_prefix="attention",
    attention=AttentionNames(output="wo"),
    fused_qkv="wqkv",
    mlp_prefix="feed_forward",
    mlp=MlpNames(gate="w1", up="w3", down="w2"),
)
CHATGLM = replace(
    LLAMA,
    tokens="transformer.embedding.word_embeddings",
    final_norm="transformer.encoder.final_layernorm",
    head="transformer.output_layer",
    attention_prefix="self_attention",
    attention=AttentionNames(output="dense"),
    fused_qkv="query_key_value",
    qkv_bias="add_qkv_bias",
    output_bias="add_bias_linear",
    mlp=MlpNames(fused="dense_h_to_4h", down="dense_4h_to_h"),
    mlp_bias="add_bias_linear",
)
