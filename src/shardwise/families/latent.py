"""Decoders with multi-head latent attention (MLA): DeepSeek V2 and V3, Kimi, MiniCPM 3, GLM 4.7 Flash."""

from dataclasses import replace

from shardwise.families.assembly import num_layers, per_layer
from shardwise.families.blocks import Weights, norm, projection
from shardwise.families.config import ModelConfig
from shardwise.families.decoder import LLAMA, DenseDecoder, SparseDecoder
from shardwise.families.experts import ExpertStyle, after_first_dense, sparse
from shardwise.families.moe_styles import DEEPSEEK_EXPERTS, SHARED_EXPERTS
from shardwise.model import AttentionSpec

MLA_STYLE = replace(LLAMA, attention_kind="mla")
NO_MLP_BIAS = replace(MLA_STYLE, mlp_bias=False)


def _indexer(config: ModelConfig, attention: AttentionSpec) -> Weights:
    """The lightning indexer that picks the tokens of DeepSeek's sparse attention (V3.2)."""
    hidden_size, heads, head_dim = (
        config.count("hidden_size"),
        config.count("index_n_heads"),
        config.count("index_head_dim"),
    )
    source = attention.q_lora_rank or hidden_size
    return (
        projection("self_attn.indexer.wq_b", (heads * head_dim, source), "replicated")
        + projection("self_attn.indexer.wk", (head_dim, hidden_size), "replicated")
        + norm("self_attn.indexer.k_norm", head_dim, bias=True)
        + projection("self_attn.indexer.weights_proj", (heads, hidden_size), "replicated")
    )


def _has_indexer(config: ModelConfig) -> tuple[bool, ...]:
    """GLM 5.2: some blocks reuse the tokens that an earlier block picked, as a list, a pattern or a period says."""
    types = config.words("indexer_types")
    if types is not None:
        return tuple(word != "shared" for word in per_layer(config, "indexer_types", types))
    pattern = config.value("index_topk_pattern")
    if isinstance(pattern, str):
        return tuple(letter != "S" for letter in per_layer(config, "index_topk_pattern", tuple(pattern)))
    period, offset = config.count_or("index_topk_freq", 1), config.count_or("index_skip_topk_offset", 2)
    return tuple(max(index - offset + 1, 0) % period == 0 for index in range(num_layers(config)))


DEEPSEEK_V2 = SparseDecoder(
    MLA_STYLE, sparse(ExpertStyle(shared=replace(SHARED_EXPERTS, bias="mlp_bias")), after_first_dense)
)
DEEPSEEK_V3 = SparseDecoder(NO_MLP_BIAS, sparse(DEEPSEEK_EXPERTS, after_first_dense))
DEEPSEEK_V32 = SparseDecoder(replace(NO_MLP_BIAS, extras=_indexer), sparse(DEEPSEEK_EXPERTS, after_first_dense))
GLM_MOE_DSA = SparseDecoder(
    replace(NO_MLP_BIAS, extras=_indexer, extras_layers=_has_indexer), sparse(DEEPSEEK_EXPERTS, after_first_dense)
)
MINICPM3 = DenseDecoder(MLA_STYLE)
