"""States as the engine keeps them and as the textbook counts them, and explanations that never mix the two."""

import pytest

from shardwise.catalog import read_cluster
from shardwise.explain.explanation import explain
from shardwise.explain.state_counts import counted_states, engine_states, textbook_states
from shardwise.explain.strategy import advise
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe


def plan(model, cluster="8xh100-sxm", layout=None, **recipe):
    return Plan(
        model=read_model(model),
        cluster=read_cluster(cluster),
        recipe=Recipe(**({"seq_len": 2048, "convention": "seed"} | recipe)),
        layout=layout or Layout(dp_shard=8, zero_stage=3),
    )


def finding(asked, topic):
    return next(finding for finding in explain(asked).findings if finding.topic == topic)


@pytest.mark.parametrize(("model", "fewest"), [("70B", 11), ("405B", 61), ("llama-3.1-70b", 11), ("7B", 2)])
def test_the_fewest_gpus_are_those_of_the_plans_convention(model, fewest):
    """12 bytes x 70e9 over 80e9 are 10.5; 405e9: 60.75; 7e9: 1.05."""
    worlds = finding(plan(model), "world-size")
    assert f" {fewest} of these GPUs" in worlds.claim
    assert worlds.because.startswith("12 bytes x ")


def test_the_engines_convention_counts_sixteen_bytes_over_what_the_framework_sees():
    """70,553,706,496 x 16 bytes over 79.18 GiB are 13.3."""
    worlds = finding(plan("llama-3.1-70b", convention="engine"), "world-size")
    assert " 14 of these GPUs" in worlds.claim
    assert worlds.because.startswith("16 bytes x 70,553,706,496 parameters")


def test_states_of_adapters_are_not_those_of_full_training():
    """70.55B frozen weights in 4 bits and their scales are 37.0 GiB, the adapters' own states 0.7 GiB: one GPU."""
    worlds = finding(plan("llama-3.1-70b", "8xa100-sxm-80", convention="engine", adapter="qlora"), "world-size")
    assert " 1 of these GPUs" in worlds.claim
    assert "16 bytes" not in worlds.because
    assert 37 < worlds.numbers[0].value / 2**30 < 38


@pytest.mark.parametrize(
    ("recipe", "textbook", "engine"),
    [
        ({}, 12, 16),
        ({"precision": "fp32"}, 16, 16),
        ({"precision": "bf16"}, 12, 8),
    ],
)
def test_bytes_per_parameter_by_precision(recipe, textbook, engine):
    asked = plan("llama-3.1-8b", **recipe)
    assert textbook_states(asked).bytes_per_param == textbook
    assert engine_states(asked).bytes_per_param == engine
    assert counted_states(asked) == textbook_states(asked)


def test_a_model_known_by_its_size_has_that_many_parameters_in_the_textbook():
    assert textbook_states(plan("70B")).total_bytes == 840e9


@pytest.mark.parametrize(
    ("model", "layout"),
    [("70B", Layout(dp_shard=8, zero_stage=1)), ("llama-3.1-8b", Layout(dp_shard=8, zero_stage=3))],
)
def test_changes_under_the_textbook_convention_are_ones_it_counts(model, layout):
    """It counts an 8-bit optimizer as none at all, and has no recomputation, adapters, chunks or buffers."""
    changes = explain(plan(model, layout=layout, micro_batch_size=4)).changes
    assert changes
    for change in changes:
        after = change.plan.recipe
        assert (after.optimizer, after.adapter, after.recompute, after.loss_chunks) == ("adamw", "none", "none", 1)
        assert not after.activation_offload
        assert after.offload in ("none", "optimizer")


def test_a_single_rank_is_warned_in_its_own_convention():
    alone = plan("7B", cluster="h100-sxm", layout=Layout(zero_stage=3))
    caution = next(finding for finding in explain(alone).findings if "divides nothing" in finding.claim)
    assert "all 12 bytes per parameter" in caution.claim
    assert "8-bit" not in caution.suggestion
    engine = plan("7B", cluster="h100-sxm", layout=Layout(zero_stage=3), convention="engine")
    caution = next(finding for finding in explain(engine).findings if "divides nothing" in finding.claim)
    assert "all 14 bytes per parameter" in caution.claim


def test_strategies_are_compared_in_the_convention_that_was_asked_for():
    """70e9 x 12 bytes are 840 GB, over 80e9 10.5; by ZeRO-3 on 8 GPUs 105 GB, which are 97.79 GiB."""
    asked = plan("70B")
    one, ladder = advise(model=asked.model, cluster=asked.cluster, recipe=asked.recipe, engine=asked.engine)[:2]
    assert one.claim.endswith("10.5 times that.")
    assert one.because.startswith(
        "the textbook counts 2 bytes of weights, 2 of gradients and 8 of optimizer states a parameter"
    )
    assert "97.79 GiB with ZeRO-3" in ladder.claim
    assert "stage 1 divides the optimizer (8 of 12 bytes per parameter)" in ladder.because
