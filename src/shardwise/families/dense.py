"""Dense decoders whose config needs a word of translation before the common decoder can be built from it."""

from dataclasses import replace

from shardwise.families.assembly import language_head, language_model, num_layers
from shardwise.families.blocks import Weights, position_table, projection, token_table
from shardwise.families.config import ModelConfig
from shardwise.families.decoder import LLAMA, LayerKind, decoder, decoder_layer, style_norms
from shardwise.families.gpt_styles import FALCON, GPT2, GPT_NEO, MPT, OPT
from shardwise.families.llama_styles import BAICHUAN, CHATGLM, QWEN1
from shardwise.families.windows import RotaryRule
from shardwise.model import ModelSpec

OPT_POSITION_OFFSET = 2
"""OPT's position table has two rows before the first position."""

BAICHUAN_ALIBI_HIDDEN_SIZE = 5120
"""Baichuan 13B uses ALiBi biases where the 7B model rotates."""


def gpt_bigcode(config: ModelConfig) -> ModelSpec:
    """GPT-2 with one key-value head shared by all heads (SantaCoder, StarCoder)."""
    kv_heads = 1 if config.flag("multi_query") else None
    flat = config.with_values(num_key_value_heads=kv_heads, head_dim=None)
    return decoder(flat, replace(GPT2, unread=()))


def gpt_neo(config: ModelConfig) -> ModelSpec:
    """GPT-Neo: every other layer attends to a local window."""
    words = config.words("attention_layers") or _expanded(config)
    types = tuple("sliding_attention" if word == "local" else "full_attention" for word in words)
    return decoder(config.with_values(layer_types=types, sliding_window=config.value("window_size")), GPT_NEO)


def _expanded(config: ModelConfig) -> tuple[str, ...]:
    """``[[["global", "local"], 12]]`` written out as one word per layer."""
    pattern = config.value("attention_types")
    if not isinstance(pattern, list | tuple):
        config.refuse_type("attention_types", pattern, "a list of patterns and repetitions")
    words: list[str] = []
    for entry in pattern:
        match entry:
            case [[*kinds], int(times)] if 0 < times <= num_layers(config):
                words.extend(str(kind) for kind in kinds * times)
            case _:
                config.refuse_type("attention_types", pattern, "a list of patterns and repetitions")
    return tuple(words)


def mpt(config: ModelConfig) -> ModelSpec:
    """MPT: ALiBi, no biases; the width is a multiple of the hidden size."""
    width = config.count("expansion_ratio") * config.count("hidden_size")
    return decoder(config.with_values(intermediate_size=width), MPT)


def falcon(config: ModelConfig) -> ModelSpec:
    """Falcon: 7B shares one key-value head; the new decoder architecture groups them and has two input norms."""
    is_new, is_parallel = config.flag("new_decoder_architecture"), config.flag("parallel_attn")
    if not is_new:
        kv_heads = 1 if config.flag("multi_query") else config.count("num_attention_heads")
        config = config.with_values(num_key_value_heads=kv_heads)
    if not is_parallel:
        names: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    elif config.count_or("num_ln_in_parallel_attn", 2 if is_new else 1) == 2:
        names = ("ln_attn", "ln_mlp")
    else:
        names = ("input_layernorm",)
    rotary: RotaryRule = "none" if config.flag("alibi") else "all"
    return decoder(config, replace(FALCON, norms=names, is_parallel=is_parallel, rotary=rotary))


def opt(config: ModelConfig) -> ModelSpec:
    """OPT: learned positions with two spare rows; 350M has narrower token vectors and norms that read sums."""
    hidden_size = config.count("hidden_size")
    width = config.count_or("word_embed_proj_dim", hidden_size)
    positions = config.count("max_position_embeddings") + OPT_POSITION_OFFSET
    embeddings = token_table("model.decoder.embed_tokens", config.count("vocab_size"), width)
    embeddings += position_table("model.decoder.embed_positions", positions, hidden_size)
    final: Weights = ()
    if width != hidden_size:
        embeddings += projection("model.decoder.project_in", (hidden_size, width), "replicated")
        final += projection("model.decoder.project_out", (width, hidden_size), "replicated")
    is_before = config.flag("do_layer_norm_before")
    if is_before and not config.flag("_remove_final_layer_norm"):
        final += style_norms(config, OPT, (OPT.final_norm,))
    kind = LayerKind(window=None, has_rotary=False, is_sparse=False)
    layer = replace(decoder_layer(config, OPT, kind), normed="inputs" if is_before else "sums")
    return language_model(
        config,
        layers=(layer,) * num_layers(config),
        embeddings=embeddings,
        final=final,
        head=language_head(config, "lm_head", width),
    )


def qwen1(config: ModelConfig) -> ModelSpec:
    """Qwen: its ``intermediate_size`` is the gate and up width together; only QKV has a bias."""
    return decoder(config.with_values(intermediate_size=config.count("intermediate_size") // 2), QWEN1)


def internlm3(config: ModelConfig) -> ModelSpec:
    """InternLM 3: Llama whose attention and feed-forward biases have names of their own."""
    biases = {"attention_bias": config.flag("qkv_bias"), "mlp_bias": config.flag("bias")}
    return decoder(config.with_values(**biases), LLAMA)


def baichuan(config: ModelConfig) -> ModelSpec:
    """Baichuan: Llama with one fused QKV matrix; the 13B model has no rotary positions."""
    is_alibi = config.count("hidden_size") >= BAICHUAN_ALIBI_HIDDEN_SIZE
    return decoder(config, replace(BAICHUAN, rotary="none" if is_alibi else "all"))


def chatglm(config: ModelConfig) -> ModelSpec:
    """ChatGLM 2 and 3, GLM-4-9B-chat: grouped key-value heads, fused gate, vocabulary padded in the file."""
    groups = config.value("multi_query_group_num") if config.flag("multi_query_attention") else None
    vocab_size = config.count_or("padded_vocab_size", config.count_or("vocab_size", 1))
    # The files name ChatGLMModel, but what is loaded and trained is the model with its output layer.
    flat = config.with_values(num_key_value_heads=groups, vocab_size=vocab_size, architectures=None)
    return decoder(flat, CHATGLM)
