"""Bare sizes: a typical shape whose exact count is close to the asked one, and that says so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import ModelError
from shardwise.families import read_model
from shardwise.families.sizes import size_of_text


@pytest.mark.parametrize(
    ("text", "num_params"),
    [
        ("70B", 70e9),
        ("1.5b", 1.5e9),
        ("350M", 350e6),
        ("1T", 1e12),
        (" 13 B ", 13e9),
        ("20000K", 2e7),
        ("70", None),
        ("B", None),
        ("7e9", None),
        ("-7B", None),
        ("7BB", None),
    ],
)
def test_a_size_is_a_number_and_a_letter(text, num_params):
    assert size_of_text(text) == num_params


@given(exponent=st.floats(7, 14))
def test_the_exact_count_is_within_one_percent(exponent):
    asked = 10**exponent
    model = read_model({"num_parameters": asked})
    assert abs(model.num_params - asked) <= 0.01 * asked
    attention = model.attention
    assert attention.num_attention_heads % attention.num_key_value_heads == 0
    assert attention.num_attention_heads * attention.head_dim == model.hidden_size


@pytest.mark.parametrize(
    ("text", "num_params", "layers", "hidden_size"),
    [
        ("70B", 70_553_706_496, 80, 8192),
        ("405B", 405_853_388_800, 126, 16384),
        ("8B", 8_030_261_248, 32, 4096),
        ("13B", 13_015_864_320, 40, 5120),
    ],
)
def test_well_known_sizes_have_the_published_shape(text, num_params, layers, hidden_size):
    model = read_model(text)
    assert (model.num_params, model.num_hidden_layers, model.hidden_size) == (num_params, layers, hidden_size)


def test_the_assumed_shape_is_told_in_one_sentence():
    (sentence,) = read_model("70B").assumptions
    assert sentence == (
        "assumed a Llama-like shape of 70.55B parameters: 80 layers, hidden_size 8192, intermediate_size 28672, "
        "64 heads, 8 key-value heads, vocab_size 128256 (untied)"
    )


def test_a_size_in_a_mapping_and_in_a_text_are_the_same_model():
    assert read_model({"num_parameters": 70e9}) is read_model("70B")
    assert read_model({"num_parameters": "70B"}).num_params == read_model("70B").num_params
    assert read_model("70B").model_type == "llama"
    assert read_model("7B").name == "llama-like-6.98B"


@pytest.mark.parametrize("value", [0, -7e9, 1, 1e15, float("nan"), float("inf"), "70", None, [7], True, 10**400])
def test_sizes_nobody_trains_are_refused(value):
    with pytest.raises(ModelError) as caught:
        read_model({"num_parameters": value})
    assert caught.value.code in ("model-size-range", "model-field-type")


def test_a_size_stands_alone():
    with pytest.raises(ModelError, match="num_parameters stands alone"):
        read_model({"num_parameters": 7e9, "vocab_size": 32000})
