"""Choices that cost more than they give are found, named with what they cost, and proposed to be taken back."""

from dataclasses import replace

import pytest

from shardwise.catalog import read_cluster
from shardwise.explain.choices import CHOICES, choice_findings
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.recipe import Recipe
from shardwise.rules import find_errors
from shardwise.rules.changes import changes_text


def plan(model="llama-3.2-1b", cluster="8xh100-sxm", layout=None, engine="fsdp2", **recipe):
    return Plan(
        model=read_model(model),
        cluster=read_cluster(cluster),
        recipe=Recipe(**({"seq_len": 2048, "global_batch_size": 64, "micro_batch_size": 8, "compile": True} | recipe)),
        layout=layout or Layout(dp_shard=8),
        engine=engine,
    )


def claims(asked):
    return [finding.claim for finding in choice_findings(asked, predict(asked))]


WASTEFUL = [
    (plan(layout=Layout(tp=8, zero_stage=0, sequence_parallel=True), micro_batch_size=4), "Tensor parallelism over 8"),
    (plan(layout=Layout(cp=4, dp_shard=2), engine="torchtitan"), "Context parallelism over 4 ranks at 2,048 tokens"),
    (plan("llama-3.1-8b", layout=Layout(pp=4, dp_shard=2), engine="torchtitan", micro_batch_size=4), "A pipeline of 4"),
    (plan(recompute="full"), "Recomputation (full)"),
    (plan(micro_batch_size=1, seq_len=512), "A micro-batch of 1 x 512 = 512 tokens"),
    (plan(precision="fp32"), "Training in fp32"),
    (plan(attention="eager", micro_batch_size=1), "Eager attention"),
    (plan(offload="optimizer"), "offload=optimizer"),
    (plan(activation_offload=True, micro_batch_size=1), "activation_offload=true"),
    (
        plan(
            "llama-3.1-8b",
            layout=Layout(pp=2, dp_shard=4, reshard_after_forward=False, schedule="gpipe"),
            engine="torchtitan",
            micro_batch_size=1,
        ),
        "The schedule gpipe",
    ),
    (
        plan(
            "qwen3-30b-a3b",
            "64xh100-sxm",
            Layout(dp_shard=64, ep=64, zero_stage=1),
            "megatron",
            micro_batch_size=1,
            seq_len=4096,
            global_batch_size=512,
            compile=False,
        ),
        "Expert parallelism",
    ),
]


@pytest.mark.parametrize(("asked", "words"), WASTEFUL, ids=[words for _, words in WASTEFUL])
def test_a_wasteful_choice_is_named(asked, words):
    assert find_errors(asked) == ()
    assert any(claim.startswith(words) for claim in claims(asked)), claims(asked)


def test_a_plan_without_waste_is_not_questioned():
    assert claims(plan("llama-3.1-8b", seq_len=8192, micro_batch_size=2, recompute="selective")) == []


def test_the_numbers_are_those_of_the_plans_that_are_named():
    asked = plan(layout=Layout(cp=4, dp_shard=2), engine="torchtitan")
    (finding, *_) = choice_findings(asked, predict(asked))
    proposed = predict(
        next(
            one.plan
            for choice in CHOICES
            for one in choice.edits(asked)
            if changes_text(one.changes) == finding.suggestion
        )
    )
    assert [number.value for number in finding.numbers] == [
        predict(asked).time.step_s,
        proposed.time.step_s,
        predict(asked).memory.needed_bytes,
        proposed.memory.needed_bytes,
    ]
    assert proposed.time.step_s < predict(asked).time.step_s


def test_a_switch_that_costs_and_saves_nothing_is_said():
    """Recomputed activations of a last stage whose peak is its optimizer states."""
    asked = Plan(
        model=read_model("deepseek-v2"),
        cluster=read_cluster("128xh800"),
        recipe=Recipe(seq_len=4096, global_batch_size=512, recompute="selective"),
        layout=Layout(pp=16, ep=8, dp_shard=8, zero_stage=1, schedule="zb-h1"),
        engine="hai-llm",
    )
    bare = replace(asked, recipe=replace(asked.recipe, recompute="none"))
    now, without = predict(asked), predict(bare)
    assert without.time.step_s < 0.995 * now.time.step_s
    assert without.memory.needed_bytes == now.memory.needed_bytes
    said = [claim for claim in claims(asked) if claim.startswith("Recomputation (selective) costs")]
    assert len(said) == 1
