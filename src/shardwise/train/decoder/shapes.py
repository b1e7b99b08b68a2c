"""Names and shapes of our decoder's tensors, from its config alone: a launcher can look at weights without torch."""

from collections.abc import Iterator

from shardwise.train.decoder.config import DecoderConfig

Shape = tuple[int, ...]


def tensor_shapes(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    """Every parameter of the whole model; a tied head is none of its own."""
    table = (config.vocab_size, config.hidden_size)
    yield "model.embed_tokens.weight", table
    for index in range(config.num_hidden_layers):
        for name, shape in _block_shapes(config):
            yield f"model.layers.{index}.{name}", shape
    yield "model.norm.weight", (config.hidden_size,)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", table


def _block_shapes(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    hidden = config.hidden_size
    query_size = config.num_attention_heads * config.head_dim
    key_size = config.num_key_value_heads * config.head_dim
    yield "input_layernorm.weight", (hidden,)
    for name, size in (("q", query_size), ("k", key_size), ("v", key_size)):
        yield f"self_attn.{name}_proj.weight", (size, hidden)
        if config.has_qkv_bias:
            yield f"self_attn.{name}_proj.bias", (size,)
    yield "self_attn.o_proj.weight", (hidden, query_size)
    if config.has_output_bias:
        yield "self_attn.o_proj.bias", (hidden,)
    if config.has_qk_norm:
        yield "self_attn.q_norm.weight", (config.head_dim,)
        yield "self_attn.k_norm.weight", (config.head_dim,)
    yield "post_attention_layernorm.weight", (hidden,)
    yield from _feed_forward_shapes(config)


def _feed_forward_shapes(config: DecoderConfig) -> Iterator[tuple[str, Shape]]:
    hidden, width, num_experts = config.hidden_size, config.intermediate_size, config.num_experts
    if config.is_moe:
        yield "mlp.gate.weight", (num_experts, hidden)
        yield "mlp.experts.gate_up_proj", (num_experts, 2 * width, hidden)
        yield "mlp.experts.down_proj", (num_experts, hidden, width)
        return
    yield "mlp.gate_proj.weight", (width, hidden)
    yield "mlp.up_proj.weight", (width, hidden)
    yield "mlp.down_proj.weight", (hidden, width)
