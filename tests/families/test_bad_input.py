"""Input that cannot be used: one sentence, a code and a fix, never a traceback and never a hang."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.errors import ModelError
from shardwise.families import read_model
from shardwise.families.table import FAMILIES
from shardwise.families.wrappers import WRAPPERS

LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 101}


def refusal(source):
    with pytest.raises(ModelError) as caught:
        read_model(source)
    error = caught.value
    assert error.message
    assert error.fix
    assert "\n" not in error.message
    assert len(error.message) < 500
    return error


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"hidden_size": 0}, "model-field-range"),
        ({"hidden_size": -64}, "model-field-range"),
        ({"hidden_size": "64"}, "model-field-type"),
        ({"hidden_size": math.nan}, "model-field-type"),
        ({"hidden_size": math.inf}, "model-field-type"),
        ({"hidden_size": 64.5}, "model-field-type"),
        ({"hidden_size": True}, "model-field-type"),
        ({"hidden_size": [64]}, "model-field-type"),
        ({"hidden_size": 10**30}, "model-field-range"),
        ({"hidden_size": None}, "model-field-type"),
        ({"rms_norm_eps": "1e-5"}, "model-field-type"),
        ({"rms_norm_eps": None}, "model-field-type"),
        ({"rms_norm_eps": math.nan}, "model-field-type"),
        ({"rms_norm_eps": True}, "model-field-type"),
        ({"rms_norm_eps": -1e-5}, "model-field-range"),
        ({"initializer_range": [0.02]}, "model-field-type"),
        ({"initializer_range": 2}, "model-field-range"),
        ({"rope_theta": {}}, "model-field-type"),
        ({"rope_theta": 0}, "model-field-range"),
        ({"hidden_size": 65}, "model-heads-mismatch"),
        ({"num_key_value_heads": 3}, "model-heads-mismatch"),
        ({"num_key_value_heads": 8}, "model-heads-mismatch"),
        ({"num_hidden_layers": 100_001}, "model-field-range"),
        ({"num_hidden_layers": 1e300}, "model-field-range"),
        ({"vocab_size": -1}, "model-field-range"),
        ({"tie_word_embeddings": "yes"}, "model-field-type"),
        ({"attention_dropout": 1.5}, "model-field-range"),
        ({"attention_dropout": "0.1"}, "model-field-type"),
        ({"hidden_act": 7}, "model-field-type"),
        ({"model_type": "lama"}, "model-unknown-family"),
        ({"model_type": 7}, "model-field-type"),
        ({"architectures": "LlamaForCausalLM"}, "model-field-type"),
    ],
)
def test_an_absurd_field_is_refused_by_name(change, code):
    error = refusal(LLAMA | change)
    assert error.code == code
    if code != "model-heads-mismatch":
        assert next(iter(change)) in error.message or code == "model-unknown-family"


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "null"), (True, "true"), ("64", '"64"'), (math.nan, "NaN"), (-math.inf, "-Infinity"), ([1], "[1]")],
    ids=str,
)
def test_a_value_is_shown_as_the_file_has_it(value, shown):
    assert refusal(LLAMA | {"hidden_size": value}).message == f"hidden_size is {shown}, but it must be a whole number"


def test_a_field_is_named_as_the_file_spells_it():
    error = refusal({"model_type": "gpt2", "n_embd": "64"})
    assert (error.message, error.fix) == (
        'n_embd is "64", but it must be a whole number',
        "write n_embd as a whole number",
    )


@pytest.mark.parametrize("is_folder", [False, True])
def test_the_file_is_named(tmp_path, is_folder):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA | {"vocab_size": "x"}), encoding="utf-8")
    error = refusal(str(tmp_path) if is_folder else file)
    assert error.message == f'{file}: vocab_size is "x", but it must be a whole number'


def test_nested_fields_are_named_with_their_place():
    error = refusal({"model_type": "llava", "text_config": LLAMA | {"hidden_size": -1}, "vision_config": {}})
    assert "text_config.hidden_size" in error.message


def test_more_experts_per_token_than_experts_cannot_be():
    error = refusal({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5})
    assert (error.code, error.fix) == ("model-field-range", "set num_experts_per_tok to at most 4")


def test_a_list_of_layer_types_must_cover_the_model():
    error = refusal({"model_type": "gemma2", "num_hidden_layers": 3, "layer_types": ["full_attention"]})
    assert "describes 1 layers, but num_hidden_layers is 3" in error.message


def test_a_kind_of_layer_that_a_family_does_not_have_is_refused():
    fields = {"model_type": "lfm2", "num_hidden_layers": 2, "layer_types": ["conv", "sliding_attention"]}
    with pytest.raises(ModelError, match='layer_types is "sliding_attention", but it must be full_attention or conv'):
        read_model(fields)


def test_an_unknown_family_names_the_closest_ones_and_the_generic_description():
    error = refusal({"model_type": "qwen3_mo"})
    assert "qwen3_moe" in error.message
    assert "hidden_size, num_hidden_layers, num_attention_heads, vocab_size" in error.fix


@pytest.mark.parametrize(("typed", "meant"), [("lama", "llama"), ("qwen3_mo", "qwen3_moe"), ("llama5", "")])
def test_a_misspelt_family_is_named_in_the_fix_and_a_newer_one_is_not(typed, meant):
    fix = refusal({**LLAMA, "model_type": typed}).fix
    assert fix.startswith(f'write "model_type": "{meant}" if that is meant; ' if meant else "to plan it, ")


def test_a_misspelt_size_is_not_filled_in_with_the_familys():
    error = refusal({("hiden_size" if name == "hidden_size" else name): value for name, value in LLAMA.items()})
    assert error.message.endswith('has no "hidden_size", but "hiden_size"')
    assert error.fix == 'write "hidden_size" instead of "hiden_size"'


def test_a_config_without_family_says_what_a_generic_description_lacks():
    error = refusal({"hidden_size": 64, "num_hidden_layers": 3})
    assert "num_attention_heads, vocab_size" in error.message


def test_an_unknown_name_lists_close_ones():
    error = refusal("llama-3.1-8")
    assert error.code == "model-unknown-name"
    assert "llama-3.1-8b" in error.message


@pytest.mark.parametrize(
    "text", ["", "   ", "\x00", "~nobody-here/x", "a" * 10_000, "no/such/folder", "70X", "-7B", "nanB"]
)
def test_texts_that_name_nothing_are_refused(text):
    assert refusal(text).code == "model-unknown-name"


@pytest.mark.parametrize("source", [None, 7, 7.5, ["llama"], object(), b"gpt2"])
def test_other_kinds_of_source_are_refused(source):
    assert refusal(source).code == "model-source-type"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "model-json-broken"),
        ("", "model-json-broken"),
        ("[1, 2]", "model-json-broken"),
        ('"gpt2"', "model-json-broken"),
        ("[" * 100_000, "model-json-broken"),
        ('{"model_type": "llama", "vocab_size": ' + "9" * 5000 + "}", "model-json-broken"),
        ("{}", "model-field-missing"),
    ],
    ids=["cut off", "empty", "list", "text", "deep", "huge number", "empty object"],
)
def test_a_broken_file_is_refused(tmp_path, text, code):
    file = tmp_path / "config.json"
    file.write_text(text, encoding="utf-8")
    assert refusal(file).code == code


def test_a_file_of_a_hundred_megabytes_is_refused_before_it_is_read(tmp_path):
    file = tmp_path / "config.json"
    with file.open("wb") as stream:
        stream.truncate(100_000_000)
    assert refusal(file).code == "model-file-too-large"


def test_binary_files_and_folders_without_a_config_are_refused(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(range(256)))
    assert refusal(weights).code == "model-file-unreadable"
    assert refusal(tmp_path).code == "model-file-missing"
    assert refusal(tmp_path / "nothing.json").code == "model-file-missing"
    assert refusal(str(tmp_path / "nothing.json")).code == "model-file-missing"


def test_a_device_is_not_a_config():
    assert refusal("/dev/zero").code == "model-file-missing"


def test_fields_json_cannot_hold_are_refused():
    circular: dict[str, object] = {"model_type": "llama"}
    circular["self"] = circular
    for source in (circular, {"model_type": {1, 2}}, {("a", "b"): 1}, {1: 2, "a": 3}):
        assert refusal(source).code == "model-json-broken"


@pytest.mark.parametrize("layers", [100_000])
def test_a_hundred_thousand_layers_are_read_in_no_time(layers):
    config = {"model_type": "deepseek_v3", "num_hidden_layers": layers, "mlp_layer_types": ["sparse"] * layers}
    assert read_model(config).num_hidden_layers == layers


NUMBERS = st.one_of(st.integers(-10, 10**7), st.floats(allow_nan=True), st.just(10**40))
JUNK = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.text(max_size=5), st.sampled_from(["auto", "full_attention"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)
FIELDS = [
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size",
    "vocab_size", "head_dim", "layer_types", "num_local_experts", "num_experts_per_tok", "architectures",
    "tie_word_embeddings", "text_config", "vision_config", "attention_types", "hybrid_override_pattern",
    "q_lora_rank", "sliding_window", "moe_layers", "mlp_only_layers", "n_shared_experts", "expand", "mamba_expand",
    "time_step_rank", "attn_config", "ffn_config", "id2label", "feed_forward_proj", "no_rope_layers", "norm",
    "position_embedding", "image_size",
]  # fmt: skip


def read_or_refuse(source):
    """The model, or ``None`` when it was refused; anything but a refusal fails the test."""
    try:
        return read_model(source)
    except ModelError as error:
        refused = error
    assert refused.message
    assert refused.fix
    assert "\n" not in refused.message
    return None


@settings(max_examples=400)
@given(
    model_type=st.sampled_from(sorted([*FAMILIES, *WRAPPERS])),
    changes=st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=4),
)
def test_any_junk_in_any_family_is_a_model_or_a_refusal(model_type, changes):
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 11}
    model = read_or_refuse(sizes | {"intermediate_size": 7, "model_type": model_type} | changes)
    if model is not None:
        assert model.num_params > 0
        assert 0 < model.num_active_params <= model.num_params
        assert json.loads(model.spec_json)


@settings(max_examples=200)
@given(source=st.dictionaries(st.text(max_size=8), JUNK, max_size=5))
def test_any_mapping_is_a_model_or_a_refusal(source):
    read_or_refuse(source)


@pytest.mark.parametrize(
    "fields",
    [{"model_type": "clip"}, {"model_type": "siglip"}, {"architectures": ["CLIPModel"]}, {"model_type": "clap"}],
)
def test_a_model_that_only_embeds_text_is_refused_like_any_unknown_family(fields):
    sizes = {"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "vocab_size": 49408}
    assert refusal(fields | {"text_config": sizes, "vision_config": {}}).code == "model-unknown-family"


BY_THEIR_CLASS = [pytest.param(name, marks=pytest.mark.families) for name in ("vit", "whisper", "siglip_vision_model")]
"""As wav2vec2: a process that imports transformers is asked, which takes four seconds."""


@pytest.mark.parametrize("model_type", [*BY_THEIR_CLASS, "wav2vec2"])
def test_a_tower_on_its_own_is_refused(model_type):
    assert refusal({"model_type": model_type, "hidden_size": 768}).code == "model-unknown-family"


@pytest.mark.parametrize("text", ["\n", "no\nsuch.json", "\t\x00", "lla\nma-3.1-8b"])
def test_a_name_of_several_lines_is_refused_in_one(text):
    with pytest.raises(ModelError) as caught:
        read_model(text)
    assert caught.value.message.isprintable()
    assert caught.value.fix.isprintable()


def test_a_name_that_stops_early_lists_the_names_that_go_on():
    error = refusal("llama-3")
    assert "close names are llama-3-8b, llama-3-70b" in error.message
    assert error.fix.startswith("try llama-3-8b")


def test_the_nearest_of_several_names_is_proposed():
    """Of llama-3-8b and llama-3.1-8b the one that lacks a letter, not the first of the alphabet."""
    with pytest.raises(ModelError) as caught:
        read_model("lama-3.1-8b")
    assert caught.value.fix.startswith("try llama-3.1-8b,")
