"""The practical checklist: every question answered with the numbers of the model at hand."""

import pytest

from shardwise.catalog import read_cluster
from shardwise.explain.checklist import checklist
from shardwise.explain.strategy_trials import try_strategies
from shardwise.families import read_model
from shardwise.recipe import Recipe
from shardwise.search import question_of

QUESTIONS = (
    "Does it fit one GPU?",
    "Is it wide?",
    "Is it deep, and do activations decide?",
    "Does the optimizer dominate?",
    "Must the footprint be minimal?",
    "What is the network?",
)


def answers(model, cluster, engine="native", **recipe):
    asked = Recipe(**({"seq_len": 4096, "global_batch_size": 256} | recipe))
    question = question_of(model=read_model(model), cluster=read_cluster(cluster), recipe=asked, engine=engine)
    found = checklist(question, try_strategies(question))
    return {next(one for one in QUESTIONS if finding.claim.startswith(one)): finding for finding in found}


@pytest.fixture(scope="module")
def eight_billion():
    return answers("llama-3.1-8b", "16xh100-sxm")


def test_every_question_is_answered(eight_billion):
    assert set(eight_billion) == set(QUESTIONS)
    assert all(answer.suggestion for answer in eight_billion.values())


def test_8b_does_not_fit_one_gpu_but_its_adapters_do(eight_billion):
    """16 bytes x 8.03B = 119.7 GiB; 4-bit weights alone are about 5 GiB."""
    answer = eight_billion["Does it fit one GPU?"]
    assert "no, unless only adapters" in answer.claim
    numbers = {number.name: number.value / 2**30 for number in answer.numbers}
    assert numbers["needed undivided"] > 119.7
    assert numbers["with a 4-bit base and adapters (QLoRA)"] < 20


def test_a_small_model_fits_and_needs_no_division():
    answer = answers("gpt2", "8xa100-sxm-80", seq_len=1024)["Does it fit one GPU?"]
    assert "? yes" in answer.claim
    assert "data parallelism" in answer.suggestion


def test_half_of_the_states_are_the_optimizers_with_fp32_masters_as_weights(eight_billion):
    answer = eight_billion["Does the optimizer dominate?"]
    assert "8 of 16 bytes" in answer.claim
    assert answer.numbers[0].value == 0.5


def test_the_optimizer_dominates_where_an_undivided_gpu_would_hold_nothing_larger():
    """8B with two sequences of 8,192: 59.83 GiB of moments, 47.42 of activations; adapters have 0.10 GiB of moments."""
    kinds = {"seq_len": 8192, "global_batch_size": 32}
    claim = answers("llama-3.1-8b", "8xh100-sxm", **kinds)["Does the optimizer dominate?"].claim
    assert "? yes, undivided it is 59.83 GiB" in claim
    assert "more than activations (47.42 GiB)" in claim
    adapted = answers("llama-3.1-8b", "8xh100-sxm", **kinds, adapter="lora")["Does the optimizer dominate?"]
    assert "? no, undivided it is 0.10 GiB" in adapted.claim
    assert "0.0136 of 2.03 bytes" in adapted.claim
    assert "frozen weights and activations decide" in adapted.suggestion


@pytest.mark.parametrize(("batch", "needed_gib"), [(64, 23.47), (8, 21.73)])
def test_undivided_a_small_model_holds_whole_gradients_beside_logits_where_they_add_up(batch, needed_gib):
    """One micro-batch a rank frees activations and logits before the last gradients are there: 21.73 GiB at the end of
    backward (22.22 while the 16-bit token table, 0.49 GiB, was counted until its gradients were reduced; the unit is
    freed before). Eight micro-batches add whole fp32 gradients up, which wait beside the next one's logits: 23.47."""
    answer = answers("llama-3.2-1b", "8xh100-sxm", seq_len=2048, global_batch_size=batch)["Does it fit one GPU?"]
    assert round(answer.numbers[0].value / 2**30, 2) == needed_gib
    assert ("whole gradients add up over 8 micro-batches" in answer.because) == (batch == 64)


def test_a_device_that_holds_it_by_a_hair_is_at_the_edge():
    answer = answers("llama-3.2-1b", "8xrtx-4090", seq_len=2048, global_batch_size=64)["Does it fit one GPU?"]
    assert "? at the edge: undivided it needs 23." in answer.claim


def test_a_405b_layer_is_wide_and_an_8b_layer_is_not(eight_billion):
    assert "Is it wide? no" in eight_billion["Is it wide?"].claim
    assert "Is it wide? yes" in answers("llama-3.1-405b", "128xh100-sxm", global_batch_size=128)["Is it wide?"].claim


def test_both_levels_of_the_network_are_named_one_way(eight_billion):
    claim = eight_billion["What is the network?"].claim
    assert "450.0 GB/s a GPU inside a node" in claim
    assert "50.0 GB/s between nodes" in claim


def test_a_slow_network_between_single_gpus_is_answered_by_what_was_predicted(tmp_path):
    """HSDP has no node to stay in with one GPU in each; 125 MB/s make full sharding wait for most of the step."""
    cluster = tmp_path / "slow.toml"
    cluster.write_text('gpu = "a100-pcie-80"\nnum_nodes = 4\ngpus_per_node = 1\nnetwork_gbit_per_s_per_node = 1\n')
    found = answers("gpt2", str(cluster), seq_len=1024, global_batch_size=4096)["What is the network?"]
    assert found.numbers[0].value > 0.5
    assert found.suggestion.startswith("ZeRO-1 takes 0.")  # gathered and reduced once a step


def test_one_gpu_has_no_network_and_nobody_to_divide_with():
    found = answers("llama-3.1-405b", "1xt4", precision="fp16-mixed", global_batch_size=8)
    assert set(found) == set(QUESTIONS)
    assert "0 bytes a step" in found["What is the network?"].claim
    assert "one cannot divide states" in found["Does it fit one GPU?"].suggestion


def test_a_layer_of_three_gpus_is_not_called_small_enough():
    """A layer has 3.19B parameters: 47.5 GiB of states on a card of 14.6 GiB."""
    wide = answers("llama-3.1-405b", "1xt4", precision="fp16-mixed", global_batch_size=8)["Is it wide?"]
    assert "326.2% of a GPU" in wide.claim
    assert "do not even fit layer by layer" in wide.suggestion


def test_undivided_means_that_experts_are_not_divided_either():
    """16 bytes x 671.03B parameters are 9999 GiB on every GPU, although experts could be spread over 64."""
    found = answers("deepseek-v3", "64xa100-sxm-80")
    whole = found["Does it fit one GPU?"]
    assert whole.numbers[0].value > 16 * 671.03e9
    assert "(dp_replicate=64)" in whole.because
    assert "25.0 GB/s between nodes; nothing fits" in found["What is the network?"].claim


def test_an_engine_without_zero_stages_gets_no_advice_about_them():
    found = answers("llama-3.1-8b", "8xh100-sxm", engine="fsdp1")
    assert "fsdp1" in found["Does the optimizer dominate?"].because


def test_more_gpus_than_sequences_are_answered_from_the_states():
    found = answers("llama-3.1-405b", "128xh100-sxm", global_batch_size=64)
    assert "no: they are 6,047.69 GiB" in found["Does it fit one GPU?"].claim
