"""Tensor and expert parallelism: how every weight divides."""

import pytest

from shardwise.families import load_models, read_model
from shardwise.layout import Layout
from shardwise.step.layer_placement import local_num_params

NAMES = [entry.name for entry in load_models()]


def weight(model, name, *, layer=0):
    return next(found for found in model.layers[layer].weights if found.name == name)


def layer_weights(name):
    model = read_model(name)
    return {found.name: found for layer in model.layers for found in layer.weights}.values()


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("self_attn.q_proj.weight", "column"),
        ("self_attn.q_proj.bias", "column"),
        ("self_attn.k_proj.weight", "column"),
        ("self_attn.o_proj.weight", "row"),
        ("self_attn.o_proj.bias", "replicated"),
        ("mlp.gate_proj.weight", "column"),
        ("mlp.gate_proj.bias", "column"),
        ("mlp.down_proj.weight", "row"),
        ("mlp.down_proj.bias", "replicated"),
        ("input_layernorm.weight", "replicated"),
    ],
)
def test_projections_in_split_by_column_and_projections_out_by_row(name, split):
    model = read_model({"model_type": "llama", "attention_bias": True, "mlp_bias": True})
    assert weight(model, name).split == split


def test_key_and_value_weights_split_no_further_than_their_heads():
    model = read_model({"model_type": "qwen2", "num_attention_heads": 32, "num_key_value_heads": 8})
    limits = {found.name: found.split_limit for found in model.layers[0].weights if "self_attn" in found.name}
    assert limits == {
        "self_attn.q_proj.weight": None,
        "self_attn.q_proj.bias": None,
        "self_attn.k_proj.weight": 8,
        "self_attn.k_proj.bias": 8,
        "self_attn.v_proj.weight": 8,
        "self_attn.v_proj.bias": 8,
        "self_attn.o_proj.weight": None,
    }


def test_fused_projections_are_one_matrix_until_key_value_heads_are_shared():
    assert weight(read_model("gpt2"), "attn.c_attn.weight").shape == (2304, 768)
    falcon = read_model("falcon-7b").layers[0]
    fused = {w.name: (w.shape, w.split_limit) for w in falcon.weights if "query_key_value" in w.name}
    assert fused == {
        "self_attention.query_key_value.weight[query]": ((4544, 4544), None),
        "self_attention.query_key_value.weight[key_value]": ((128, 4544), 1),
    }


def test_latent_down_projections_are_replicated_and_up_projections_split():
    splits = {w.name: w.split for w in read_model("deepseek-v3").layers[0].weights if "self_attn" in w.name}
    assert splits == {
        "self_attn.q_a_proj.weight": "replicated",
        "self_attn.q_a_layernorm.weight": "replicated",
        "self_attn.q_b_proj.weight": "column",
        "self_attn.kv_a_proj_with_mqa.weight": "replicated",
        "self_attn.kv_a_layernorm.weight": "replicated",
        "self_attn.kv_b_proj.weight": "column",
        "self_attn.o_proj.weight": "row",
    }


def test_routed_experts_are_stacked_and_shared_ones_are_not_routed():
    layer = read_model("deepseek-v3").layers[-1]
    routed = {w.name: (w.shape, w.split) for w in layer.weights if w.is_expert}
    assert routed == {
        "mlp.experts.gate_proj": ((256, 2048, 7168), "column"),
        "mlp.experts.up_proj": ((256, 2048, 7168), "column"),
        "mlp.experts.down_proj": ((256, 7168, 2048), "row"),
    }
    shared = [w for w in layer.weights if "shared_experts" in w.name]
    assert [w.split for w in shared] == ["column", "column", "row"]
    assert not any(w.is_expert for w in shared)
    router = weight(read_model("deepseek-v3"), "mlp.gate.weight", layer=60)
    assert (router.role, router.split, router.shape) == ("router", "replicated", (256, 7168))


def test_gpt_oss_has_expert_biases_and_sinks():
    layer = read_model("gpt-oss-20b").layers[0]
    found = {w.name: (w.shape, w.split, w.is_expert) for w in layer.weights}
    assert found["mlp.experts.gate_proj_bias"] == ((32, 2880), "column", True)
    assert found["mlp.experts.down_proj_bias"] == ((32, 2880), "replicated", True)
    assert found["mlp.router.bias"] == ((32,), "replicated", False)
    assert found["self_attn.sinks"] == ((64,), "column", False)


def test_tables_and_head_split_by_vocabulary():
    model = read_model("llama-3.1-8b")
    assert [(w.name, w.split, w.role) for w in model.embedding_weights] == [
        ("model.embed_tokens.weight", "vocab", "embedding")
    ]
    assert [(w.name, w.split, w.role) for w in model.head_weights] == [("lm_head.weight", "vocab", "head")]


def test_a_tied_head_is_empty_but_still_there():
    model = read_model("gpt2")
    assert model.head_weights == ()
    assert model.has_head
    assert model.tie_word_embeddings


def test_position_tables_are_not_counted_as_input_embedding():
    model = read_model("gpt2")
    assert model.num_embedding_params == 50257 * 768
    assert sum(w.num_params for w in model.embedding_weights) == (50257 + 1024) * 768


@pytest.mark.parametrize("name", NAMES)
def test_shards_hold_the_whole_model_and_no_less(name):
    """What one rank holds times the ranks is at least the whole, and exactly it for weights that divide evenly."""
    layout = Layout(tp=2, ep=2, expert_tp=1)
    for found in layer_weights(name):
        local = local_num_params(found, layout)
        shards = (1 if found.split == "replicated" or found.is_expert else 2) * (2 if found.is_expert else 1)
        if found.split_limit == 1:
            shards = 1
        assert local * shards >= found.num_params
        assert (local - 1) * shards < found.num_params


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_has_a_name_of_its_own_in_its_layer(name):
    model = read_model(name)
    for layer, _ in model.layer_runs:
        assert len({w.name for w in layer.weights}) == len(layer.weights)
    outside = model.embedding_weights + model.final_weights + model.head_weights + model.side_weights
    assert len({w.name for w in outside}) == len(outside)


@pytest.mark.parametrize("name", NAMES)
def test_every_matrix_has_a_gemm_shape_and_every_norm_a_vector(name):
    for found in layer_weights(name):
        if found.role == "matrix" and not found.is_expert:
            assert len(found.shape) == 2, found
        if found.is_expert and found.role == "matrix":
            assert len(found.shape) == 3, found
        if found.role in ("norm", "bias") and not found.is_expert and "q_norm" not in found.name:
            assert len(found.shape) <= 2, found
