"""Routers of models that transformers builds: the class's own auxiliary loss, and biases that balance without one."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from shardwise.errors import LayoutError, ModelError
from shardwise.train.family_routing import config_loss_coef
from shardwise.train.job import CheckpointSpec, RoutingSpec
from shardwise.train.router_balance import watch_routers
from train.models import MIXTRAL, make_job
from train.representatives import representatives
from train.routed_family import both_losses, family_decoder
from train.tiny_families import tiny_fields
from train.world_member import bias_run

WITH_LOSS = {
    "mixtral": 0.001,
    "qwen3_moe": 0.001,
    "gpt_oss": 0.001,
    "dbrx": 0.01,
    "ernie4_5_moe": 0.001,
    "flex_olmo": 0.01,
    "granitemoe": 0.001,
    "granitemoehybrid": 0.001,
    "granitemoeshared": 0.001,
    "jamba": 0.001,
    "minimax": 0.001,
    "minimax_m2": 0.001,
    "olmoe": 0.01,
    "phimoe": 0.001,
    "qwen2_moe": 0.001,
    "qwen3_5_moe_text": 0.001,
    "qwen3_next": 0.001,
}
"""Families whose class adds a loss, and the coefficient of a config that leaves it out (transformers 5.24)."""


@pytest.mark.parametrize("model_type", representatives(WITH_LOSS, ("mixtral", "qwen3_moe", "gpt_oss", "jamba")))
def test_the_loss_of_a_family_is_that_of_its_class_with_its_gradients(model_type):
    ((ours, gradients), (theirs, expected)), coefficient = both_losses(model_type)
    assert ours == pytest.approx(theirs, rel=1e-6)
    assert coefficient == WITH_LOSS[model_type]
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize("model_type", ["deepseek_v3", "llama4_text"])
def test_a_class_without_a_loss_has_no_coefficient(model_type):
    assert config_loss_coef(family_decoder(model_type, output_router_logits=True)) is None


def watch(job):
    return watch_routers((family_decoder(job.model_config["model_type"]),), job, torch.device("cpu"))


def test_a_loss_is_refused_where_the_class_has_none_and_a_pipeline_has_no_whole():
    job = replace(make_job(model=tiny_fields("deepseek_v3")), routing=RoutingSpec(aux_loss_ratio=0.01))
    with pytest.raises(ModelError, match="computes no auxiliary loss for deepseek_v3"):
        watch(job)
    job = replace(make_job(model=MIXTRAL, layout={"pp": 2}), routing=RoutingSpec(aux_loss_ratio=0.01))
    with pytest.raises(LayoutError, match="with pp=2 no rank sees them all"):
        watch(job)


def test_moving_biases_is_refused_where_there_are_none():
    job = replace(make_job(model=tiny_fields("olmoe")), routing=RoutingSpec(bias_update_ratio=0.001))
    with pytest.raises(ModelError, match="olmoe adds no bias before it chooses experts"):
        watch(job)


def bias_job(model_type, layout, **named):
    job = make_job(model=tiny_fields(model_type), layout=layout, **{"num_steps": 10, **named})
    return replace(job, routing=RoutingSpec(bias_update_ratio=0.01, expert_load="counts"))


@pytest.fixture(scope="module")
def biases_alone(worlds):
    """What ten steps of one process give, by family."""
    return cache(lambda model_type: worlds[1].run(bias_run, bias_job(model_type, {}))[0])


@pytest.mark.parametrize(
    ("model_type", "layout"),
    [
        pytest.param("deepseek_v3", {"dp_shard": 2}, marks=pytest.mark.runs),
        ("deepseek_v3", {"dp_shard": 2, "ep": 2}),
        pytest.param("deepseek_v3", {"dp_replicate": 2, "zero_stage": 0}, marks=pytest.mark.runs),
        ("afmoe", {"dp_shard": 2}),
    ],
)
def test_biases_move_for_ten_steps_as_in_one_process(worlds, biases_alone, model_type, layout):
    """AFMoE has a parameter where DeepSeek-V3 has a buffer: FSDP divides it."""
    alone = biases_alone(model_type)
    for losses, counts, biases in worlds[2].run(bias_run, bias_job(model_type, layout)):
        assert losses == pytest.approx(alone[0], rel=1e-6)
        assert counts == alone[1]
        assert biases.keys() == alone[2].keys()
        for name, bias in biases.items():
            assert bias == pytest.approx(alone[2][name], abs=1e-7)
    steps = {round(abs(value) / 0.01, 4) for bias in alone[2].values() for value in bias}
    assert steps <= {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
    assert max(steps) > 1


def test_a_resumed_run_moves_the_biases_that_it_saved(worlds, tmp_path):
    layout = {"dp_shard": 2}
    job = bias_job("deepseek_v3", layout, num_steps=6)
    saved = CheckpointSpec(folder=str(tmp_path), every_steps=3, num_kept=9)
    whole = worlds[2].run(bias_run, replace(job, checkpoint=saved))[0]
    again = CheckpointSpec(resume_from=str(tmp_path / "step-00000003"))
    resumed = worlds[2].run(bias_run, replace(job, checkpoint=again))[0]
    assert resumed[0] == whole[0][3:]
    assert resumed[2] == whole[2]
