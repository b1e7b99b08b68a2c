"""What families assume for fields a config omits."""

import json
from importlib.resources import files

import pytest

from shardwise.families import read_model
from shardwise.families.defaults import family_defaults
from shardwise.families.table import FAMILIES, SAME_AS
from shardwise.families.vision import TOWERS
from shardwise.families.wrappers import WRAPPERS


@pytest.mark.parametrize(
    ("model_type", "is_tied"),
    [
        ("gpt2", True),
        ("gpt_neox", False),
        ("gptj", False),
        ("opt", True),
        ("bloom", True),
        ("falcon", True),
        ("mpt", True),
        ("llama", False),
        ("gemma2", True),
        ("cohere", True),
        ("starcoder2", True),
        ("granite", False),
        ("mamba", True),
        ("mamba2", False),
        ("t5", True),
    ],
)
def test_whether_tables_are_tied_when_the_config_does_not_say(model_type, is_tied):
    """The defaults of the configuration classes of transformers 5.24.0."""
    assert read_model({"model_type": model_type}).tie_word_embeddings is is_tied


def test_every_family_has_defaults():
    missing = [name for name in (*FAMILIES, *WRAPPERS, *TOWERS) if name != "mllama" and not family_defaults(name)]
    assert missing == []


def test_aliases_lead_to_families():
    assert set(SAME_AS.values()) <= set(FAMILIES)


def test_the_table_of_defaults_says_where_and_when_it_was_read():
    table = json.loads(files("shardwise").joinpath("catalog/models/family_defaults.json").read_text(encoding="utf-8"))
    assert table["source"].startswith("transformers 5.24.0")
    assert table["read"] == "2026-11-27"
    assert table["remote_source"]


def test_a_null_in_the_config_is_not_the_default():
    """``q_lora_rank: null`` projects queries directly; leaving the field out means DeepSeek-V3's rank of 1,536."""
    base = {"model_type": "deepseek_v3", "num_hidden_layers": 3}
    assert read_model(base).attention.q_lora_rank == 1536
    assert read_model(base | {"q_lora_rank": None}).attention.q_lora_rank is None


def test_flan_t5_keeps_a_head_of_its_own():
    """T5 1.1 README: no sharing between the token table and the head; google/flan-t5-base has 247,577,856 weights."""
    flan = {
        "model_type": "t5", "d_model": 768, "d_kv": 64, "d_ff": 2048, "num_layers": 12, "num_heads": 12,
        "feed_forward_proj": "gated-gelu", "vocab_size": 32128, "tie_word_embeddings": False,
    }  # fmt: skip
    assert read_model(flan).num_params == 247_577_856


def test_architectures_decide_what_follows_the_last_block():
    base = {"model_type": "llama", "num_hidden_layers": 2, "num_labels": 7}
    language = read_model(base)
    bare = read_model(base | {"architectures": ["LlamaModel"]})
    scored = read_model(base | {"architectures": ["LlamaForSequenceClassification"]})
    assert language.num_params - bare.num_params == 32000 * 4096
    assert scored.num_params - bare.num_params == 7 * 4096
    assert (language.has_head, bare.has_head, scored.has_head) == (True, False, False)


def test_glm4_moe_rounds_the_width_of_its_heads_down():
    """transformers 5.24.0 counts 103,481,200,640 parameters for Glm4MoeConfig(): 96 heads of 4096 // 96 = 42."""
    model = read_model({"model_type": "glm4_moe"})
    assert model.attention.head_dim == 42
    assert model.num_params == 103_481_200_640
    assert read_model({"model_type": "glm4_moe", "head_dim": 128}).attention.head_dim == 128


DBRX_ATTENTION = {"attn_config": {"kv_n_heads": 8, "clip_qkv": 8}}
DBRX_EXPERTS = {"ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}}
DBRX_SIZES = {"model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352}


@pytest.mark.parametrize(
    ("config", "taken"),
    [
        (DBRX_SIZES | DBRX_ATTENTION | DBRX_EXPERTS, None),
        (DBRX_SIZES | DBRX_EXPERTS, "num_key_value_heads 1"),
        (DBRX_SIZES | DBRX_ATTENTION, "num_experts 4, num_experts_per_tok 1, moe_intermediate_size 3584"),
    ],
)
def test_a_field_in_a_nested_object_is_not_said_to_be_missing(config, taken):
    sentences = read_model(config).assumptions
    assert [sentence.partition("taken: ")[2] for sentence in sentences] == ([] if taken is None else [taken])


ERNIE_21B = {
    "model_type": "ernie4_5_moe",
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "vocab_size": 103424,
    "moe_num_experts": 64,
    "moe_intermediate_size": 1536,
    "moe_layer_start_index": 1,
    "moe_layer_interval": 1,
}


def test_a_default_that_decides_more_than_a_hundredth_of_the_parameters_is_told():
    """transformers' own default is two shared experts: 27 blocks x 2 x 3 x 2560 x 1536 = 637,009,920 parameters."""
    silent, stated = read_model(ERNIE_21B), read_model(ERNIE_21B | {"moe_num_shared_experts": 2})
    without = read_model(ERNIE_21B | {"moe_num_shared_experts": 0})
    assert silent.num_params == stated.num_params
    assert stated.num_params - without.num_params == 637_009_920
    assert silent.assumptions == (
        "the config does not say it, so the defaults of ernie4_5_moe were taken: num_experts_per_tok 6, "
        "n_shared_experts 2",
    )
    assert stated.assumptions == (
        "the config does not say it, so the defaults of ernie4_5_moe were taken: num_experts_per_tok 6",
    )


@pytest.mark.parametrize(
    ("config", "num_params"),
    [
        ({"model_type": "gpt2", "tie_word_embeddings": None}, 124_439_808),
        ({"model_type": "gemma", "head_dim": None}, 8_537_680_896),
        ({"model_type": "gpt_neox", "attention_bias": None}, 20_554_567_680),
        ({"model_type": "qwen3", "head_dim": None}, 12_049_461_248),
    ],
)
def test_a_null_that_the_class_takes_for_no_value_is_its_default(config, num_params):
    """transformers 5.24.0 refuses these nulls; without the field its classes have so many parameters."""
    assert read_model(config).num_params == num_params


def test_a_null_of_a_count_of_experts_is_the_default_and_is_told():
    model = read_model({"model_type": "deepseek_v2", "num_experts_per_tok": None})
    assert model.moe.num_experts_per_tok == 6
    assert "num_experts_per_tok 6" in model.assumptions[0]
