"""Meta's and Mistral's ``params.json``."""

import pytest

from shardwise.errors import ModelError
from shardwise.families import read_model

LLAMA_2_70B = {
    "dim": 8192, "multiple_of": 4096, "ffn_dim_multiplier": 1.3, "n_heads": 64, "n_kv_heads": 8, "n_layers": 80,
    "norm_eps": 1e-5, "vocab_size": 32000,
}  # fmt: skip
MISTRAL_7B = {
    "dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
    "norm_eps": 1e-5, "vocab_size": 32000,
}  # fmt: skip
LLAMA_2_7B = {"dim": 4096, "multiple_of": 256, "n_heads": 32, "n_layers": 32, "norm_eps": 1e-5, "vocab_size": 32000}
LLAMA_3_8B = LLAMA_2_7B | {"multiple_of": 1024, "ffn_dim_multiplier": 1.3, "n_kv_heads": 8, "vocab_size": 128256}


@pytest.mark.parametrize(
    ("params", "num_params"),
    [
        (LLAMA_2_70B, 68_976_648_192),
        (LLAMA_2_7B, 6_738_415_616),
        (LLAMA_3_8B, 8_030_261_248),
        (MISTRAL_7B, 7_241_732_096),
        (MISTRAL_7B | {"moe": {"num_experts_per_tok": 2, "num_experts": 8}}, 46_702_792_704),
    ],
    ids=["llama-2-70b", "llama-2-7b", "llama-3-8b", "mistral-7b", "mixtral-8x7b"],
)
def test_the_width_follows_the_rule_of_the_code_that_reads_it(params, num_params):
    """Parameter counts of the published checkpoints."""
    assert read_model(params).num_params == num_params


@pytest.mark.parametrize(
    ("change", "words"),
    [({"vocab_size": -1}, "leaves vocab_size to the tokenizer"), ({"moe_args": {"num_experts": 16}}, "moe_args")],
)
def test_what_the_file_leaves_open_is_refused(change, words):
    with pytest.raises(ModelError, match=words):
        read_model(LLAMA_2_7B | change)


def test_sizes_that_a_generic_description_leaves_out_are_told():
    sizes = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000}
    assert read_model(sizes).assumptions[-1] == (
        "the config does not say it, so it was taken: intermediate_size 16384 (four times hidden_size), "
        "num_key_value_heads 32 (one for each head)"
    )
    whole = sizes | {"intermediate_size": 11008, "num_key_value_heads": 8, "gated_mlp": True}
    assert read_model(whole).assumptions == ()
