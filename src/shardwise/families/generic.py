"""A model described by its sizes alone, for families nobody here knows."""

from dataclasses import replace

from shardwise.families.blocks import LLAMA_MLP, MlpNames
from shardwise.families.config import ModelConfig
from shardwise.families.decoder import LLAMA, DenseDecoder, SparseDecoder
from shardwise.families.experts import ExpertStyle, SharedExpert, after_first_dense, n_shared_width, sparse
from shardwise.model import ModelSpec, NormKind

REQUIRED_FIELDS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
OPTIONAL_FIELDS = (
    "intermediate_size",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
    "gated_mlp",
    "norm",
    "bias",
    "position_embedding",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "n_shared_experts",
    "first_k_dense_replace",
    "kv_lora_rank",
)


def generic(config: ModelConfig) -> ModelSpec:
    """A decoder made from its sizes: Llama, unless the norm, biases, gate or positions are said to differ."""
    norm, positions = _norm(config), _positions(config)
    has_gate = config.flag("gated_mlp")
    style = replace(
        LLAMA,
        norm=norm,
        norm_bias=norm == "layernorm",
        qkv_bias="bias",
        output_bias="bias",
        mlp_bias="bias",
        mlp=LLAMA_MLP if has_gate else MlpNames(gate=""),
        attention_kind="mla" if config.is_given("kv_lora_rank") else "mha",
        positions="model.embed_positions" if positions == "learned" else "",
        rotary="all" if positions == "rotary" else "none",
    )
    if not config.is_given("num_experts"):
        return DenseDecoder(style)(config)
    width = config.value("moe_intermediate_size") or config.count("intermediate_size")
    experts = ExpertStyle(is_gated=has_gate, shared=SharedExpert(name="shared_experts", width=n_shared_width))
    return SparseDecoder(style, sparse(experts, after_first_dense))(config.with_values(moe_intermediate_size=width))


def _norm(config: ModelConfig) -> NormKind:
    word = config.text_or("norm", "rmsnorm")
    if word == "layernorm":
        return "layernorm"
    return "rmsnorm" if word == "rmsnorm" else config.refuse_type("norm", word, "rmsnorm or layernorm")


def _positions(config: ModelConfig) -> str:
    word = config.text_or("position_embedding", "rotary")
    known = ("rotary", "learned", "none")
    return word if word in known else config.refuse_type("position_embedding", word, "rotary, learned or none")
