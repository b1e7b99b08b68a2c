"""Multimodal wrappers: the language model is planned, towers and projectors are counted beside it."""

import pytest

from shardwise.families import read_model

TEXT = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 101, "intermediate_size": 97}
TEXT |= {"num_key_value_heads": 2}


def test_llava_is_its_language_model_a_clip_tower_and_a_projector():
    model = read_model("llava-1.5-7b")
    text = read_model({"model_type": "llama", "vocab_size": 32064})
    tower = 1024 + 1024 * 3 * 14 * 14 + 577 * 1024 + 4 * 1024
    tower += 24 * (4 * (1024 * 1024 + 1024) + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024)
    projector = 1024 * 4096 + 4096 + 4096 * 4096 + 4096
    assert model.num_side_params == tower + projector
    assert model.num_params == text.num_params + tower + projector
    assert model.num_hidden_layers == 32
    assert model.model_type == "llava"


def test_the_first_qwen2_vl_files_spread_the_language_model_over_the_top_level():
    model = read_model("qwen2-vl-2b")
    assert model.num_hidden_layers == 28
    assert model.tie_word_embeddings
    assert model.num_params - model.num_side_params == read_model("qwen2-1.5b").num_params


def test_a_wrapper_decides_whether_tables_are_tied():
    gemma = {"model_type": "gemma3", "text_config": TEXT | {"tie_word_embeddings": False}}
    assert read_model(gemma).tie_word_embeddings
    assert not read_model(gemma | {"tie_word_embeddings": False}).tie_word_embeddings


def test_llava_also_ties_when_its_language_model_does():
    config = {"model_type": "llava", "text_config": {"model_type": "llama", "tie_word_embeddings": True} | TEXT}
    assert read_model(config).tie_word_embeddings


def test_an_unknown_wrapper_counts_its_language_model_and_says_so():
    for field in ("text_config", "llm_config", "language_config"):
        config = {"model_type": "brand_new_vl", field: TEXT | {"model_type": "qwen2"}, "vision_config": {"depth": 3}}
        model = read_model(config)
        assert model.model_type == "brand_new_vl"
        assert model.num_params == read_model(TEXT | {"model_type": "qwen2"}).num_params
        assert "only the language model is counted" in model.assumptions[-1]


def test_an_unknown_tower_in_a_known_wrapper_is_told():
    config = {
        "model_type": "llava",
        "text_config": TEXT | {"model_type": "llama"},
        "vision_config": {"model_type": "eva"},
    }
    model = read_model(config)
    assert model.num_side_params == 0
    assert model.assumptions[-1] == "only the language model is counted: the attached eva is not known"


def test_the_architecture_finds_the_wrapper_when_model_type_names_the_language_model():
    """Early Ministral 3 files say ``ministral3`` at the top and nest the language model."""
    config = {
        "model_type": "ministral3",
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": TEXT | {"model_type": "ministral3"},
        "vision_config": {"model_type": "pixtral", "num_hidden_layers": 2},
    }
    model = read_model(config)
    assert model.num_side_params > 0
    assert model.tie_word_embeddings


def test_an_audio_tower_is_told_not_counted():
    config = {"model_type": "gemma4", "text_config": TEXT, "vision_config": {"num_hidden_layers": 2}}
    silent = read_model(config | {"audio_config": None})
    model = read_model(config | {"audio_config": {"num_layers": 2}})
    assert model.num_params == silent.num_params
    assert "the audio tower under audio_config is not counted" in model.assumptions
    assert "the audio tower under audio_config is not counted" not in silent.assumptions


def test_an_empty_tower_type_means_the_wrappers_own_tower():
    config = {"model_type": "kimi_k25", "text_config": {"num_hidden_layers": 4}, "vision_config": {"model_type": ""}}
    assert read_model(config).num_side_params == read_model("kimi-k2.5").num_side_params


@pytest.mark.parametrize(
    ("config", "num_params"),
    [
        ({"model_type": "qwen3_5", "architectures": ["Qwen3_5ForCausalLM"]}, 8_953_803_264),
        ({"model_type": "qwen3_5", "architectures": ["Qwen3_5ForCausalLM"], "vision_config": {}}, 8_953_803_264),
        ({"model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"]}, 9_407_453_936),
        ({"model_type": "qwen3_5", "architectures": ["Qwen3_5TextModel"]}, 7_936_684_544),
        ({"model_type": "qwen3_5", "architectures": ["Qwen3_5Model"]}, 8_390_335_216),
        ({"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"]}, 23_340_272_640),
    ],
)
def test_the_class_says_whether_the_image_part_and_the_head_exist(config, num_params):
    """Counted by transformers 5.24.0 on the meta device."""
    assert read_model(config).num_params == num_params


def test_a_class_of_another_family_keeps_the_image_part_of_a_wrapper():
    """LLaVA's own code names ``LlavaLlamaForCausalLM``, which holds the tower as well."""
    config = {
        "model_type": "llava",
        "text_config": TEXT | {"model_type": "llama"},
        "vision_config": {"hidden_size": 64},
    }
    assert read_model(config | {"architectures": ["LlavaLlamaForCausalLM"]}).num_side_params > 0


@pytest.mark.parametrize(("outside", "inside", "num_params"), [
    (True, None, 21_629_440), (None, True, 21_629_440), (True, False, 21_629_440), (None, None, 38_013_440),
])  # fmt: skip
def test_an_unknown_wrapper_ties_where_either_config_does(outside, inside, num_params):
    text = {"model_type": "llama", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}
    text |= {"intermediate_size": 1024, "vocab_size": 32000, "tie_word_embeddings": inside}
    model = read_model({"model_type": "foo_vl", "tie_word_embeddings": outside, "text_config": text})
    assert model.num_params == num_params


def test_whose_word_on_tied_tables_counts_differs_between_wrappers():
    """Llama 4's class asks ``text_config`` alone, and that of Llama 3.2 Vision ties nothing."""
    config = {"text_config": {"num_hidden_layers": 4}, "tie_word_embeddings": True}
    assert not read_model(config | {"model_type": "llama4"}).tie_word_embeddings
    assert not read_model(config | {"model_type": "mllama"}).tie_word_embeddings
    assert read_model({"model_type": "llama4", "text_config": {"tie_word_embeddings": True}}).tie_word_embeddings
