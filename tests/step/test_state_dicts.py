"""Phases of a run outside its steps: loading and saving whole state dicts."""

import pytest

from shardwise.plan_file import read_plan
from shardwise.predict import predict

SEVEN_BILLION = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
WEIGHTS = 6_738_415_616


def memory(engine="fsdp1", layout=None, **recipe):
    plan = {
        "model": SEVEN_BILLION,
        "cluster": "8xrtx-4090",
        "engine": engine,
        "recipe": {"seq_len": 512, "global_batch_size": 8, "precision": "bf16", "compile": False, **recipe},
        "layout": layout or {"dp_shard": 8},
    }
    return predict(read_plan(plan)).memory


def phase(found, name):
    return next(one.allocated_bytes for one in found.worst.phases if one.phase == name)


@pytest.mark.parametrize("name", ["load", "save"])
def test_a_whole_state_dict_on_the_gpu_holds_all_weights_beside_the_shards(name):
    """A 7B model in pure bf16 under FSDP on 8 cards of 24 GB took 13.5 GB more when it was saved."""
    whole = memory(**{f"{name}_state_dict": "full"})
    more = phase(whole, name) - phase(memory(), name)
    assert more == 2 * WEIGHTS
    assert whole.worst.peak_phase == ("save" if name == "save" else whole.worst.peak_phase)


def test_on_the_host_one_rank_gathers_weights_and_moments_and_the_gpu_one_unit():
    whole, plain = memory(save_state_dict="full-on-host"), memory()
    assert whole.host_bytes_per_node - plain.host_bytes_per_node == (2 + 2 + 2) * WEIGHTS
    assert phase(whole, "save") - phase(plain, "save") == 2 * (2 * 32000 * 4096 + 4096)


def test_every_rank_loads_the_whole_model_on_the_host():
    whole = memory(load_state_dict="full-on-host")
    assert whole.host_bytes_per_node == 8 * 2 * WEIGHTS


def test_states_that_no_rank_divides_are_whole_already():
    layout = {"dp_shard": 8, "zero_stage": 0}
    whole, plain = memory(layout=layout, save_state_dict="full"), memory(layout=layout)
    assert phase(whole, "save") == phase(plain, "save")


def test_adapters_alone_are_saved():
    whole = memory(adapter="lora", save_state_dict="full")
    assert 0 < phase(whole, "save") - phase(memory(adapter="lora"), "save") < WEIGHTS / 100
