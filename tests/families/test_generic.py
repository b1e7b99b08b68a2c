"""Generic descriptions: a decoder from its sizes alone."""

import pytest

from shardwise.errors import ModelError
from shardwise.families import read_model

SIZES = {
    "hidden_size": 60,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "vocab_size": 131,
    "intermediate_size": 97,
}
ATTENTION, GATED, NORMS = 4 * 60 * 60, 3 * 60 * 97, 2 * 60


def test_the_sizes_alone_make_a_llama():
    model = read_model(SIZES)
    assert model.model_type == "generic"
    assert model.num_params == 2 * 131 * 60 + 3 * (ATTENTION + GATED + NORMS) + 60


def test_naming_the_generic_family_changes_nothing():
    assert read_model(SIZES | {"model_type": "generic"}).num_params == read_model(SIZES).num_params


@pytest.mark.parametrize(
    ("change", "num_params"),
    [
        ({"tie_word_embeddings": True}, 131 * 60 + 3 * (ATTENTION + GATED + NORMS) + 60),
        ({"gated_mlp": False}, 2 * 131 * 60 + 3 * (ATTENTION + 2 * 60 * 97 + NORMS) + 60),
        ({"norm": "layernorm"}, 2 * 131 * 60 + 3 * (ATTENTION + GATED + 2 * NORMS) + 120),
        ({"bias": True}, 2 * 131 * 60 + 3 * (ATTENTION + 4 * 60 + GATED + 2 * 97 + 60 + NORMS) + 60),
        ({"num_key_value_heads": 2}, 2 * 131 * 60 + 3 * (2 * 3600 + 2 * 60 * 20 + GATED + NORMS) + 60),
        ({"head_dim": 14}, 2 * 131 * 60 + 3 * (4 * 60 * 84 + GATED + NORMS) + 60),
        ({"position_embedding": "learned", "max_position_embeddings": 53}, 2 * 131 * 60 + 53 * 60 + 3 * 31980 + 60),
        (
            {"num_local_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 31, "n_shared_experts": 2}
            | {"first_k_dense_replace": 1},
            2 * 131 * 60 + 3 * (ATTENTION + NORMS) + GATED + 2 * (5 * 60 + 7 * 3 * 60 * 31) + 60,
        ),
    ],
)
def test_every_option_adds_what_it_says(change, num_params):
    assert read_model(SIZES | change).num_params == num_params


def test_other_spellings_are_understood():
    spelled = {"n_embd": 60, "n_layer": 3, "n_head": 6, "vocab_size": 131, "ffn_hidden_size": 97}
    assert read_model(spelled).num_params == read_model(SIZES).num_params


@pytest.mark.parametrize(
    ("change", "field"),
    [({"norm": "batchnorm"}, "norm"), ({"position_embedding": "sideways"}, "position_embedding")],
)
def test_an_option_it_does_not_know_is_refused(change, field):
    with pytest.raises(ModelError, match=field):
        read_model(SIZES | change)


def test_latent_attention_needs_its_head_sizes():
    with pytest.raises(ModelError, match="qk_rope_head_dim"):
        read_model(SIZES | {"kv_lora_rank": 16})
