"""What is loaded, kept and exported is whole, family by family, as the class of transformers has it."""

import pytest

from launch.family_table import refusal
from shardwise.step.native_engine import OWN_DECODER_TYPES
from train.representatives import representatives
from train.tiny_families import readable_families
from train.whole_family import Probe, differences

KINDS = ("phimoe", "deepseek_v3", "gpt2", "jamba")
"""Experts in one tensor in the model and in several in a checkpoint; buffers that belong to the model's state; tied and
transposed matrices; blocks without attention. ``make families`` looks at every family."""


@pytest.mark.parametrize("model_type", KINDS)
def test_an_export_is_what_the_class_saves_and_the_first_loss_what_it_computes(worlds, model_type):
    assert differences(worlds[1], Probe(model_type=model_type)) == []


@pytest.mark.families
@pytest.mark.parametrize("model_type", readable_families())
def test_every_family_that_is_trained_is_loaded_kept_and_exported_whole(worlds, model_type):
    if refusal(model_type):
        pytest.skip(f"refused: {refusal(model_type)}")
    assert differences(worlds[1], Probe(model_type=model_type)) == []


@pytest.mark.families
@pytest.mark.parametrize("model_type", sorted(OWN_DECODER_TYPES))
def test_our_own_decoder_is_whole_too(worlds, model_type):
    assert (
        differences(
            worlds[1], Probe(model_type=model_type, implementation="shardwise", changed={"sliding_window": None})
        )
        == []
    )


@pytest.mark.parametrize("model_type", representatives(("deepseek_v3", "gpt_oss"), ("deepseek_v3",)))
def test_two_processes_write_what_one_writes(worlds, model_type):
    assert differences(worlds[2], Probe(model_type=model_type, layout={"dp_shard": 2})) == []


def test_replicas_write_what_one_process_writes(worlds):
    asked = Probe(model_type="glm4_moe", layout={"dp_replicate": 2, "zero_stage": 0})
    assert differences(worlds[2], asked) == []


@pytest.mark.parametrize("model_type", representatives(("deepseek_v3", "ernie4_5_moe"), ("ernie4_5_moe",)))
def test_what_a_run_goes_on_from_holds_buffers_and_fixed_parameters(worlds, model_type):
    assert differences(worlds[1], Probe(model_type=model_type, num_resumed_steps=1)) == []


@pytest.mark.parametrize("precision", representatives(("bf16-mixed", "bf16"), ("bf16-mixed",)))
def test_what_the_class_keeps_in_fp32_is_exported_in_fp32(worlds, precision):
    assert differences(worlds[1], Probe(model_type="deepseek_v3", precision=precision)) == []
