"""Parameter counts of the best-known block shapes in closed form.

The package counts the real weights of a config; these are the second road.
"""


def gpt2_params(*, vocab_size: int, max_position_embeddings: int, hidden_size: int, num_hidden_layers: int) -> int:
    """Parameters of GPT-2: ``V h + S h + L (12 h^2 + 13 h) + 2 h``.

    Source: Radford et al. 2019; agrees with openai-community/gpt2.
    Assumes: tied head, biases everywhere, LayerNorm with bias, 4h wide.

    >>> gpt2_params(vocab_size=50257, max_position_embeddings=1024, hidden_size=768, num_hidden_layers=12)
    124439808
    """
    embeddings = (vocab_size + max_position_embeddings) * hidden_size
    return embeddings + num_hidden_layers * (12 * hidden_size**2 + 13 * hidden_size) + 2 * hidden_size


def llama_layer_params(
    *, hidden_size: int, num_attention_heads: int, num_key_value_heads: int, head_dim: int, intermediate_size: int
) -> int:
    """Parameters of one Llama block: ``2 h a d + 2 h k d + 3 h f + 2 h``.

    Source: Touvron et al. 2023, arXiv:2307.09288; agrees with meta-llama configs.
    Assumes: no biases, RMSNorm, gated feed-forward.

    >>> llama_layer_params(hidden_size=4096, num_attention_heads=32, num_key_value_heads=8, head_dim=128,
    ...     intermediate_size=14336)
    218112000
    """
    attention = 2 * hidden_size * head_dim * (num_attention_heads + num_key_value_heads)
    return attention + 3 * hidden_size * intermediate_size + 2 * hidden_size


def llama_params(
    *, vocab_size: int, hidden_size: int, num_hidden_layers: int, layer_params: int, tie_word_embeddings: bool = False
) -> int:
    """Parameters of a Llama model: ``(1 or 2) V h + L * layer + h``.

    Source: Touvron et al. 2023, arXiv:2307.09288; agrees with meta-llama configs.
    Assumes: ``layer_params`` from :func:`llama_layer_params`.

    >>> llama_params(vocab_size=128256, hidden_size=4096, num_hidden_layers=32, layer_params=218_112_000)
    8030261248
    """
    tables = 1 if tie_word_embeddings else 2
    return tables * vocab_size * hidden_size + num_hidden_layers * layer_params + hidden_size


def mla_params(
    *,
    hidden_size: int,
    num_attention_heads: int,
    q_lora_rank: int,
    kv_lora_rank: int,
    qk_nope_head_dim: int,
    qk_rope_head_dim: int,
    v_head_dim: int,
) -> int:
    """Parameters of multi-head latent attention with compressed queries.

    ``h q + q + q a (n + r) + h (c + r) + c + c a (n + v) + a v h``.

    Source: DeepSeek-AI 2024 (DeepSeek-V2), arXiv:2405.04434, section 2.1; NVIDIA/Megatron-LM,
        megatron/training/theoretical_memory_usage.py.
    Assumes: a norm on each compressed vector, no biases.

    >>> mla_params(hidden_size=7168, num_attention_heads=128, q_lora_rank=1536, kv_lora_rank=512,
    ...     qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128)
    187107328
    """
    queries = hidden_size * q_lora_rank + q_lora_rank
    queries += q_lora_rank * num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)
    keys = hidden_size * (kv_lora_rank + qk_rope_head_dim) + kv_lora_rank
    keys += kv_lora_rank * num_attention_heads * (qk_nope_head_dim + v_head_dim)
    return queries + keys + num_attention_heads * v_head_dim * hidden_size


def expert_layer_params(
    *, hidden_size: int, num_experts: int, moe_intermediate_size: int, shared_intermediate_size: int = 0
) -> int:
    """Parameters of a gated mixture-of-experts feed-forward part: ``E 3 h f + 3 h f_s + h E``.

    Source: Jiang et al. 2024 (Mixtral), arXiv:2401.04088; DeepSeek-AI 2024, arXiv:2412.19437 for shared experts.
    Assumes: a linear router without bias and without a gate on the shared expert.

    >>> expert_layer_params(hidden_size=4096, num_experts=8, moe_intermediate_size=14336)
    1409318912
    """
    routed = num_experts * 3 * hidden_size * moe_intermediate_size
    return routed + 3 * hidden_size * shared_intermediate_size + hidden_size * num_experts
