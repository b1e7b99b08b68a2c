"""A config that omits fields is the model that transformers makes of it: in our decoder, in a plan, in an export."""

import json

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM

from shardwise.errors import ModelError
from shardwise.families import read_model
from shardwise.launch.model_config import model_config
from shardwise.step.native_engine import OWN_DECODER_TYPES
from shardwise.train.decoder.config import RopeConfig, completed, is_supported, read_config
from shardwise.train.decoder.model import Decoder
from train.models import MIXTRAL, make_job
from train.world_member import run

SMALL = {"num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 131, "num_attention_heads": 32}
"""32 heads, so that every family's own number of key-value heads divides them."""
OMITTED = {
    "llama": (32, 2, 11008, 1e-6, 10000.0, 0, 0, True),
    "mistral": (8, 2, 14336, 1e-6, 10000.0, 0, 0, True),
    "qwen2": (32, 2, 22016, 1e-6, 10000.0, 0, 0, True),
    "qwen3": (32, 128, 22016, 1e-6, 10000.0, 0, 0, True),
    "mixtral": (8, 2, 14336, 1e-5, 1000000.0, 8, 2, True),
    "qwen3_moe": (4, 2, 768, 1e-6, 10000.0, 128, 8, False),
}
"""Key-value heads, head size, width, epsilon, base of the rotation, experts, experts of a token, routing normalised.
Source: configuration classes of transformers 5.24.0."""
IN_CLASS = ("hidden_size", "intermediate_size", "rms_norm_eps", "initializer_range", "hidden_act", "sliding_window")


def minimal(model_type, **fields):
    without_window = {"sliding_window": None} if model_type == "mistral" else {}
    return {"model_type": model_type, **SMALL, **without_window, **fields}


@pytest.mark.parametrize("model_type", OMITTED)
def test_an_omitted_field_is_what_the_class_of_the_family_says(model_type):
    config = read_config(minimal(model_type))
    assert (
        config.num_key_value_heads,
        config.head_dim,
        config.intermediate_size,
        config.rms_norm_eps_ratio,
        config.rope.theta_ratio,
        config.num_experts,
        config.num_experts_per_tok,
        config.normalises_routing,
    ) == OMITTED[model_type]


def test_every_model_of_our_decoder_has_its_row():
    assert set(OMITTED) == set(OWN_DECODER_TYPES)


@pytest.mark.parametrize("model_type", OMITTED)
def test_what_was_filled_in_changes_nothing_for_transformers(model_type):
    fields = minimal(model_type)
    theirs = AutoConfig.for_model(**fields).to_dict()
    again = AutoConfig.for_model(**completed(fields)).to_dict()
    assert {name: again[name] for name in theirs if name != "head_dim"} == {
        name: value for name, value in theirs.items() if name != "head_dim"
    }


@pytest.mark.parametrize("model_type", OMITTED)
def test_nothing_that_the_class_has_is_left_for_a_reader_to_guess(model_type):
    """Those that transformers 5 moved, or that only it knows, are not written into config files by others either."""
    stated = set(completed({"model_type": model_type}))
    wanted = {"num_key_value_heads", "vocab_size", "tie_word_embeddings", "max_position_embeddings", *IN_CLASS}
    in_class = set(CONFIG_MAPPING[model_type]().to_dict())
    assert (wanted & in_class) - {"sliding_window"} <= stated
    assert {"rope_theta", "head_dim"} <= stated


@pytest.mark.parametrize("model_type", OMITTED)
def test_a_plan_counts_the_parameters_that_are_trained(model_type):
    """Of a config with nothing but sizes that keep the test small: three roads to one number."""
    narrow = {"moe_intermediate_size": 24} if model_type == "qwen3_moe" else {"intermediate_size": 24}
    fields = minimal(model_type, **narrow)
    config = read_config(fields)
    with torch.device("meta"):
        ours = Decoder(config, layers=range(config.num_hidden_layers))
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields))
    predicted = read_model(fields).num_params
    assert sum(parameter.numel() for parameter in ours.parameters()) == predicted
    assert sum(parameter.numel() for parameter in theirs.parameters()) == predicted


def test_a_null_is_no_omission():
    """``MixtralConfig``: key-value heads are eight where none are named, and all heads where they are null."""
    assert read_config(minimal("mixtral", num_key_value_heads=None)).num_key_value_heads == 32
    assert read_model(minimal("mixtral", num_key_value_heads=None)).attention.num_key_value_heads == 32


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, RopeConfig(theta_ratio=5e5)),
        ({"rope_parameters": {"rope_type": "default"}}, RopeConfig(theta_ratio=1e6)),
        ({"rope_parameters": {"rope_type": "default"}, "rope_theta": 3e4}, RopeConfig(theta_ratio=3e4)),
        (
            {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_parameters": {"rope_type": "default"}},
            RopeConfig(kind="linear", theta_ratio=1e6, factor_ratio=4.0),
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}},
            RopeConfig(kind="llama3", theta_ratio=1e6, factor_ratio=8.0, original_seq_len=131072),
        ),
    ],
)
def test_the_rotation_is_that_of_transformers_wherever_the_config_states_it(fields, expected):
    config = minimal("mixtral", **fields)
    assert read_config(config).rope == expected
    theirs = AutoConfig.for_model(**config).rope_parameters
    assert theirs["rope_theta"] == expected.theta_ratio
    assert theirs.get("original_max_position_embeddings", 8192) == expected.original_seq_len
    assert AutoConfig.for_model(**completed(config)).rope_parameters == theirs


def test_a_scaled_rotation_without_its_factor_is_refused():
    with pytest.raises(ModelError, match=r"no rope_scaling\.factor"):
        read_config(minimal("llama", rope_scaling={"rope_type": "linear"}))


@pytest.mark.parametrize("model_type", ["mistral", "mixtral"])
def test_projections_of_mistral_have_no_bias_whatever_a_config_says(model_type):
    config = read_config(minimal(model_type, attention_bias=True))
    assert not config.has_qkv_bias
    assert not config.has_output_bias


def test_a_switch_that_the_family_does_not_read_closes_no_window():
    assert not is_supported({**minimal("mistral"), "sliding_window": 8, "use_sliding_window": False})
    assert is_supported(minimal("qwen3", sliding_window=8))


def test_both_roads_train_a_config_without_epsilon_and_base_alike(worlds):
    omitted = ("rms_norm_eps", "rope_theta", "initializer_range")
    omitting = {name: value for name, value in MIXTRAL.items() if name not in omitted}
    ours, theirs = (
        worlds[1].run(run, make_job(model=omitting, num_steps=3, implementation=implementation))[0]
        for implementation in ("shardwise", "transformers")
    )
    assert theirs.losses == pytest.approx(ours.losses, rel=1e-5)


def test_the_job_of_a_plan_has_the_whole_config():
    """Which ranks read it from, checkpoints keep, and an export writes."""
    fields = model_config(read_model(minimal("mixtral")))
    written = json.loads(json.dumps(dict(fields)))
    assert (written["num_key_value_heads"], written["rms_norm_eps"], written["rope_theta"]) == (8, 1e-5, 1e6)
    assert (written["num_local_experts"], written["vocab_size"]) == (8, 131)
    assert "num_experts" not in written


def test_a_model_is_known_by_its_architecture_alone():
    fields = model_config(read_model({"architectures": ["LlamaForCausalLM"], **SMALL}))
    assert fields["model_type"] == "llama"


def test_a_family_without_a_decoder_of_ours_has_its_vocabulary():
    assert model_config(read_model({"model_type": "gemma2", "num_hidden_layers": 2}))["vocab_size"] == 256000


def test_sizes_of_nobody_knows_what_are_refused():
    with pytest.raises(ModelError, match="names no family") as refused:
        model_config(read_model({**SMALL, "intermediate_size": 64}))
    assert refused.value.fix == 'add "model_type": "llama" to the config, or the name of another family'


def test_numbers_and_switches_are_written_in_the_types_of_the_class():
    """``LlamaConfig`` takes no 64.0 for a 64, no 1 for a 1.0 and no 0 for a false; exports are read by it."""
    loose = {"hidden_size": 64.0, "rms_norm_eps": 1, "tie_word_embeddings": 0, "attention_bias": None}
    whole = completed(minimal("llama", **loose))
    assert [(type(whole[name]), whole[name]) for name in loose] == [
        (int, 64),
        (float, 1.0),
        (bool, False),
        (bool, False),
    ]
    AutoConfig.for_model(**whole)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"intermediate_size": None}, "intermediate_size is null, but it must be a whole number"),
        ({"max_position_embeddings": None}, "max_position_embeddings is null, but it must be a whole number"),
        ({"initializer_range": 1.5}, "initializer_range is 1.5, but it must be from 0 to 1"),
        ({"head_dim": 15}, "head_dim is 15, but it must be even"),
        ({"rope_scaling": "linear"}, 'rope_scaling is "linear", but it must be an object'),
        ({"rope_scaling": {"rope_type": 7}}, "rope_scaling.rope_type is 7, but it must be a word"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": "2"}},
            'rope_scaling.factor is "2", but it must be a',
        ),
        (
            {"rope_parameters": {"rope_type": "linear", "factor": 0}},
            "rope_parameters.factor is 0.0, but it must be",
        ),
        ({"rope_parameters": {"rope_theta": "1e4"}}, 'rope_theta is "1e4", but it must be a finite number'),
    ],
    ids=str,
)
def test_what_ranks_would_stumble_over_is_refused_by_name(fields, says):
    with pytest.raises(ModelError) as refused:
        read_config(minimal("llama", **fields))
    assert says in refused.value.message
