"""A planner knows from sizes which models our decoder computes; a launcher and ranks know it from the config itself."""

import pytest

from shardwise.families import read_model
from shardwise.families.catalogue import load_models
from shardwise.launch.model_config import model_config
from shardwise.step.own_runtime import has_own_decoder
from shardwise.train.decoder.config import is_supported
from train.models import LLAMA


@pytest.mark.parametrize("name", [*(entry.name for entry in load_models()), "7B"])
def test_plan_and_config_agree_on_whose_decoder_it_is(name):
    model = read_model(name)
    assert has_own_decoder(model) == is_supported(model_config(model))


def test_mistral_has_a_window_unless_its_config_says_that_it_has_none():
    """transformers 5, ``MistralConfig``: ``sliding_window`` is 4096 where a config does not name it."""
    assert not is_supported({**LLAMA, "model_type": "mistral"})
    assert is_supported({**LLAMA, "model_type": "mistral", "sliding_window": None})
    assert is_supported({**LLAMA, "model_type": "mixtral"})
    assert not is_supported({**LLAMA, "attention_dropout": 0.1})
