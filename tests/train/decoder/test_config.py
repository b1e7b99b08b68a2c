"""A planner knows from sizes which models our decoder computes; a launcher and ranks know it from the config itself."""

import importlib
import inspect
import re

import pytest

from shardwise.families import read_model
from shardwise.families.catalogue import load_models
from shardwise.launch.model_config import model_config
from shardwise.step.native_engine import OWN_DECODER_TYPES, has_own_decoder
from shardwise.train.decoder.config import is_supported, left_out
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


SIZES = {
    *("hidden_size", "intermediate_size", "moe_intermediate_size", "vocab_size", "head_dim", "num_hidden_layers"),
    *("num_attention_heads", "num_key_value_heads", "num_experts", "num_local_experts", "num_experts_per_tok"),
}
COMPUTED = {"attention_bias", "rms_norm_eps", "initializer_range", "norm_topk_prob", "pad_token_id", "rope_parameters"}
"""Read by our decoder; of ``rope_parameters`` the kinds that it knows."""
OTHERS_SAY = {"_attn_implementation", "output_router_logits", "router_aux_loss_coef", "max_position_embeddings"}
"""What the recipe says instead, the auxiliary loss that no model gets here (docs/training.md), and a bound."""
ONLY_AS_IT_IS = {
    "hidden_act": "gelu",
    "sliding_window": 8,
    "decoder_sparse_step": 2,
    "mlp_bias": True,
    "mlp_only_layers": [0],
    "attention_dropout": 0.1,
    "router_jitter_noise": 0.3,
}
"""Values of fields that our decoder does not compute."""


@pytest.mark.parametrize("model_type", OWN_DECODER_TYPES)
def test_every_field_that_a_family_reads_is_computed_or_left_to_transformers(model_type):
    module = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    read = set(re.findall(r"\bconfig\.(\w+)|\bconfig, \"(\w+)\"", inspect.getsource(module)))
    names = {name for pair in read for name in pair if name} - {"layer_types"}  # which follow from the window
    assert names <= SIZES | COMPUTED | OTHERS_SAY | ONLY_AS_IT_IS.keys()
    plain = {**LLAMA, "model_type": model_type, "use_sliding_window": False, "sliding_window": None}
    assert left_out(plain) is None
    for name in names & ONLY_AS_IT_IS.keys():
        found = left_out({**plain, name: ONLY_AS_IT_IS[name], "use_sliding_window": name == "sliding_window"})
        assert found == name
