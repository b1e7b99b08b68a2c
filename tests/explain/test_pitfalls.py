"""Common sentences about sharding, each tested by predictions on the model at hand."""

import pytest

from shardwise.catalog import read_cluster
from shardwise.explain.pitfalls import pitfalls
from shardwise.explain.strategy_trials import try_strategies
from shardwise.families import read_model
from shardwise.recipe import Recipe
from shardwise.search import question_of

OF_THE_SEEDS = ("FSDP is always better", "ZeRO-3 = free memory", "Sharding is enough")


def verdicts(model, cluster, engine="native", **recipe):
    asked = Recipe(**({"seq_len": 4096, "global_batch_size": 256} | recipe))
    question = question_of(model=read_model(model), cluster=read_cluster(cluster), recipe=asked, engine=engine)
    found = pitfalls(question, try_strategies(question))
    return {finding.claim.split('"')[1]: finding for finding in found}


@pytest.fixture(scope="module")
def eight_billion():
    return verdicts("llama-3.1-8b", "16xh100-sxm")


def test_every_sentence_of_the_seeds_is_tested(eight_billion):
    assert set(OF_THE_SEEDS) <= set(eight_billion)
    assert {"Pipeline parallelism cuts activation memory", "Mixed precision halves the memory"} <= set(eight_billion)
    assert {finding.topic for finding in eight_billion.values()} == {"pitfall"}


def test_zero_3_saves_memory_and_sends_more(eight_billion):
    claim = eight_billion["ZeRO-3 = free memory"].claim
    assert "saves" in claim
    assert "times as many bytes" in claim


def test_fsdp_is_not_better_for_a_small_model():
    finding = verdicts("gpt2", "8xa100-sxm-80", seq_len=1024)["FSDP is always better"]
    assert "false here" in finding.claim or "equally fast" in finding.claim
    assert finding.judged.verdict in ("wrong", "loose")


def test_every_sentence_has_a_verdict_of_the_one_record(eight_billion):
    found = {said: finding.judged.verdict for said, finding in eight_billion.items()}
    assert found["More GPUs mean less memory on each"] == "loose"
    assert found["Pipeline parallelism cuts activation memory"] in ("wrong", "loose")
    assert found["N GPUs process N times more data"] == "right"
    assert set(found.values()) <= {"right", "loose", "wrong", "unclear"}
    assert all(finding.judged.says == said for said, finding in eight_billion.items())


def test_sharding_is_not_enough_for_more_gpus_than_sequences():
    """64 sequences cannot be shared by 128 data-parallel ranks: the model has to be divided."""
    finding = verdicts("llama-3.1-405b", "128xh100-sxm", seq_len=8192, global_batch_size=64)["Sharding is enough"]
    assert "false here" in finding.claim
    assert finding.numbers[0].value == 64


def test_the_first_stage_of_a_pipeline_holds_nearly_as_much_as_without_stages(eight_billion):
    claim = eight_billion["Pipeline parallelism cuts activation memory"].claim
    assert "false here" in claim or "hardly here" in claim


def test_states_are_as_large_in_mixed_precision_as_in_fp32(eight_billion):
    """4 + 4 + 8 bytes either way with fp32 weights under FSDP."""
    assert "states stay 7.48 GiB a GPU" in eight_billion["Mixed precision halves the memory"].claim


def test_offload_costs_the_update_far_more_than_half(eight_billion):
    claim = eight_billion["Offloading makes optimizer steps 30 to 50% slower"].claim
    assert "6.3 ms to" in claim


def test_on_one_gpu_sharding_frees_nothing_and_the_rest_is_predicted():
    """At its peak one micro-batch has no gradient yet: 4 + 8 bytes of 124.44M parameters, in either precision."""
    found = verdicts("gpt2", "1xh100-sxm", seq_len=1024, global_batch_size=8)
    assert set(OF_THE_SEEDS) <= set(found)
    assert "not with one GPU, 1.85 GiB of states stay" in found["FSDP is always better"].claim
    assert "not needed here" in found["Sharding is enough"].claim
    assert "states stay 1.39 GiB a GPU" in found["Mixed precision halves the memory"].claim


def test_a_card_too_small_is_told_how_many_would_hold_the_states():
    """16 x 405.85e9 bytes over 14.56 GiB are 415.3 cards."""
    assert (
        "416 of them"
        in verdicts("llama-3.1-405b", "1xt4", precision="fp16-mixed", global_batch_size=8)["Sharding is enough"].claim
    )


def test_the_textbook_convention_is_tested_as_the_engine_keeps_it():
    assert "ZeRO-3 = free memory" in verdicts("70B", "16xa100-sxm-80", convention="seed", global_batch_size=16)
