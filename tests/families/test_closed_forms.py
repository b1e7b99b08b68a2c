"""Two roads: the sum over named weights equals the closed forms of the literature, for any sizes."""

from hypothesis import given
from hypothesis import strategies as st

from shardwise.families import read_model

FEW, WIDE, LAYERS = st.integers(1, 9), st.integers(1, 97), st.integers(1, 5)


def sizes(*names):
    """Independent sizes: ``heads``, ``layers``, and everything else up to 97."""
    ranges = {"kv_heads": FEW, "heads": FEW, "layers": LAYERS, "decoder_layers": LAYERS, "group": FEW, "head_dim": FEW}
    return st.fixed_dictionaries({name: ranges.get(name, WIDE) for name in names})


def llama_fields(s):
    return {
        "hidden_size": s["hidden"],
        "num_attention_heads": s["kv_heads"] * s["group"],
        "num_key_value_heads": s["kv_heads"],
        "head_dim": s["head_dim"],
        "intermediate_size": s["width"],
        "num_hidden_layers": s["layers"],
        "vocab_size": s["vocab"],
    }


@given(s=sizes("heads", "head_dim", "layers", "vocab", "positions"))
def test_gpt2_is_twelve_squares_and_thirteen_vectors_per_block(s):
    h = s["heads"] * s["head_dim"]
    fields = {"n_embd": h, "n_head": s["heads"], "n_layer": s["layers"]}
    model = read_model(fields | {"model_type": "gpt2", "vocab_size": s["vocab"], "n_positions": s["positions"]})
    assert model.num_params == s["vocab"] * h + s["positions"] * h + s["layers"] * (12 * h * h + 13 * h) + 2 * h


@given(s=sizes("kv_heads", "group", "head_dim", "hidden", "width", "layers", "vocab"), tied=st.booleans())
def test_llama_with_grouped_heads_of_any_width(s, tied):
    model = read_model(llama_fields(s) | {"model_type": "llama", "tie_word_embeddings": tied})
    h, d, k = s["hidden"], s["head_dim"], s["kv_heads"]
    block = 2 * h * k * s["group"] * d + 2 * h * k * d + 3 * h * s["width"] + 2 * h
    assert model.num_params == (1 if tied else 2) * s["vocab"] * h + s["layers"] * block + h


@given(s=sizes("kv_heads", "group", "head_dim", "hidden", "width", "layers", "vocab"))
def test_qkv_biases_and_query_key_norms_add_their_vectors(s):
    plain = read_model(llama_fields(s) | {"model_type": "mistral"}).num_params
    biased = read_model(llama_fields(s) | {"model_type": "qwen2"}).num_params
    normed = read_model(llama_fields(s) | {"model_type": "qwen3"}).num_params
    heads = s["kv_heads"] * s["group"] + 2 * s["kv_heads"]
    assert biased - plain == s["layers"] * heads * s["head_dim"]
    assert normed - plain == s["layers"] * 2 * s["head_dim"]


@given(s=sizes("kv_heads", "group", "head_dim", "hidden", "width", "layers", "vocab"), extra=FEW, top_k=FEW)
def test_experts_replace_the_dense_feed_forward_part(s, extra, top_k):
    num_experts = top_k + extra
    dense = read_model(llama_fields(s) | {"model_type": "mistral"})
    routing = {"num_local_experts": num_experts, "num_experts_per_tok": top_k}
    model = read_model(llama_fields(s) | routing | {"model_type": "mixtral"})
    expert, router = 3 * s["hidden"] * s["width"], s["hidden"] * num_experts
    assert model.num_params - dense.num_params == s["layers"] * ((num_experts - 1) * expert + router)
    assert model.num_routed_params == s["layers"] * num_experts * expert
    assert model.num_active_params - dense.num_params == s["layers"] * ((top_k - 1) * expert + router)


@given(s=sizes("heads", "q_rank", "kv_rank", "nope", "rope", "value", "hidden"))
def test_latent_attention_is_its_low_rank_factors(s):
    """``h q + q + q a (n + r) + h (c + r) + c + c a (n + v) + a v h``: arXiv:2405.04434 section 2.1."""
    a, q, c, n, r, v, h = s.values()
    model = read_model(
        {"model_type": "minicpm3", "hidden_size": h, "num_attention_heads": a, "q_lora_rank": q, "kv_lora_rank": c}
        | {"qk_nope_head_dim": n, "qk_rope_head_dim": r, "v_head_dim": v, "num_hidden_layers": 1}
        | {"intermediate_size": 1, "vocab_size": 1, "tie_word_embeddings": True}
    )
    attention = h * q + q + q * a * (n + r) + h * (c + r) + c + c * a * (n + v) + a * v * h
    feed_forward, norms, table = 3 * h, 3 * h, h
    assert model.num_params == attention + feed_forward + norms + table


@given(s=sizes("heads", "head_dim", "hidden", "width", "layers", "decoder_layers", "vocab"), tied=st.booleans())
def test_t5_with_any_depth_of_either_stack(s, tied):
    a, d, h, f, depth, decoder_depth, vocab = s.values()
    model = read_model(
        {"model_type": "t5", "d_model": h, "d_kv": d, "d_ff": f, "num_heads": a, "num_layers": depth}
        | {"num_decoder_layers": decoder_depth, "vocab_size": vocab, "feed_forward_proj": "relu"}
        | {"tie_word_embeddings": tied}
    )
    encoder, decoder = 4 * h * a * d + 2 * h * f + 2 * h, 8 * h * a * d + 2 * h * f + 3 * h
    tables, last_norms, position_biases = (1 if tied else 2) * vocab * h, 2 * h, 2 * 32 * a
    assert model.num_params == tables + depth * encoder + decoder_depth * decoder + last_norms + position_biases


@given(s=sizes("hidden", "state", "kernel", "layers", "vocab", "rank"))
def test_mamba_is_its_six_matrices(s):
    """``2 h e + e k + e + e (r + 2 n) + r e + e + e n + e + e h + h`` with ``e = 2 h``: arXiv:2312.00752 figure 3."""
    h, n, k, depth, vocab, r = s.values()
    model = read_model(
        {"model_type": "mamba", "hidden_size": h, "state_size": n, "conv_kernel": k, "num_hidden_layers": depth}
        | {"vocab_size": vocab, "time_step_rank": r}
    )
    e = 2 * h
    block = 2 * h * e + e * k + e + e * (r + 2 * n) + r * e + e + e * n + e + e * h + h
    assert model.num_params == vocab * h + depth * block + h
