"""Decoders of the GPT-2 lineage: LayerNorm with bias, four-times-wide feed-forward parts, their own module names."""

from dataclasses import replace

from shardwise.families.blocks import AttentionNames, MlpNames
from shardwise.families.decoder import LLAMA

OUT_PROJ = AttentionNames(output="out_proj")
DENSE_OUTPUT = AttentionNames(output="dense")
DENSE_OUTPUT_QK_NORM = AttentionNames(output="dense", query_norm="q_layernorm", key_norm="k_layernorm")
FOUR_H = MlpNames(gate="", up="dense_h_to_4h", down="dense_4h_to_h")
C_FC = MlpNames(gate="", up="c_fc", down="c_proj")
FC1_FC2 = MlpNames(gate="", up="fc1", down="fc2")
UP_DOWN = MlpNames(gate="")

PLAIN_HEADS = ("num_key_value_heads", "head_dim")
"""Every head has its own key and value, and the heads divide the hidden size."""

LAYERNORM = replace(LLAMA, norm="layernorm", norm_bias=True)

GPT2 = replace(
    LAYERNORM,
    unread=PLAIN_HEADS,
    tokens="transformer.wte",
    positions="transformer.wpe",
    final_norm="transformer.ln_f",
    norms=("ln_1", "ln_2"),
    attention_prefix="attn",
    attention=AttentionNames(output="c_proj"),
    fused_qkv="c_attn",
    qkv_bias=True,
    output_bias=True,
    mlp=C_FC,
    mlp_bias=True,
    rotary="none",
)
GPT_NEO = replace(
    GPT2,
    attention_prefix="attn.attention",
    attention=OUT_PROJ,
    fused_qkv="",
    qkv_bias=False,
    window="always",
)
GPTJ = replace(
    GPT2,
    positions="",
    head_bias=True,
    norms=("ln_1",),
    is_parallel=True,
    attention=OUT_PROJ,
    fused_qkv="",
    qkv_bias=False,
    output_bias=False,
    mlp=MlpNames(gate="", up="fc_in", down="fc_out"),
    rotary="all",
)
CODEGEN = replace(GPTJ, fused_qkv="qkv_proj")
GPT_NEOX = replace(
    LAYERNORM,
    unread=PLAIN_HEADS,
    tokens="gpt_neox.embed_in",
    final_norm="gpt_neox.final_layer_norm",
    is_parallel="use_parallel_residual",
    attention_prefix="attention",
    attention=DENSE_OUTPUT,
    fused_qkv="query_key_value",
    mlp=FOUR_H,
    mlp_bias=True,
)
BLOOM = replace(
    LAYERNORM,
    unread=PLAIN_HEADS,
    tokens="transformer.word_embeddings",
    embedding_norm="transformer.word_embeddings_layernorm",
    final_norm="transformer.ln_f",
    attention_prefix="self_attention",
    attention=DENSE_OUTPUT,
    fused_qkv="query_key_value",
    qkv_bias=True,
    output_bias=True,
    mlp=FOUR_H,
    mlp_bias=True,
    rotary="none",
)
FALCON = replace(
    BLOOM, unread=(), embedding_norm="", has_value_views=False, qkv_bias="bias", output_bias="bias", mlp_bias="bias"
)
MPT = replace(
    LLAMA,
    unread=PLAIN_HEADS,
    tokens="transformer.wte",
    final_norm="transformer.norm_f",
    norm="layernorm",
    norms=("norm_1", "norm_2"),
    attention_prefix="attn",
    attention=OUT_PROJ,
    fused_qkv="Wqkv",
    qkv_bias=False,
    output_bias=False,
    mlp_prefix="ffn",
    mlp=UP_DOWN,
    mlp_bias=False,
    rotary="none",
)
OPT = replace(
    LAYERNORM,
    unread=PLAIN_HEADS,
    final_norm="model.decoder.final_layer_norm",
    has_norm_weights="layer_norm_elementwise_affine",
    norms=("self_attn_layer_norm", "final_layer_norm"),
    attention=OUT_PROJ,
    qkv_bias="enable_bias",
    output_bias="enable_bias",
    mlp_prefix="",
    mlp=FC1_FC2,
    mlp_bias="enable_bias",
    rotary="none",
)
PERSIMMON = replace(
    LAYERNORM,
    unread=PLAIN_HEADS,
    final_norm="model.final_layernorm",
    attention=DENSE_OUTPUT_QK_NORM,
    fused_qkv="query_key_value",
    qkv_bias=True,
    output_bias=True,
    qk_norm="head",
    has_qk_norm="qk_layernorm",
    qk_norm_bias=True,
    mlp=FOUR_H,
    mlp_bias=True,
)
PHI = replace(
    LAYERNORM,
    unread=("head_dim",),
    final_norm="model.final_layernorm",
    head_bias=True,
    norms=("input_layernorm",),
    is_parallel=True,
    attention=DENSE_OUTPUT_QK_NORM,
    qkv_bias=True,
    output_bias=True,
    qk_norm="head",
    has_qk_norm="qk_layernorm",
    qk_norm_bias=True,
    mlp=FC1_FC2,
    mlp_bias=True,
)
