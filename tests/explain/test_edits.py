"""What an edit says is what was predicted: typed as options behind the plan's file, it gives the predicted plan."""

import argparse
from itertools import chain

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from shardwise.cli.explain import add_arguments
from shardwise.cli.plan_source import plan_from
from shardwise.engines.table import ENGINES
from shardwise.explain.changes import verify_edits
from shardwise.explain.choices import CHOICES
from shardwise.explain.explanation import explain
from shardwise.explain.knobs import _communication_edits
from shardwise.fields import Value, plan_fields
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.recipe import Recipe
from shardwise.rules import find_errors
from shardwise.rules.changes import LAYOUT_FIELDS, RECIPE_FIELDS, changes_text
from shardwise.rules.refusal import Changes
from shardwise.search.edits import HARDWARE, edit, faster_edits, fewer_ranks, host_edits, smaller_edits, usual_schedule

FIELDS = {field.name: field for record in (Layout, Recipe) for field in plan_fields(record)}
MOST_FIXES = 6


def options_of(text: str) -> list[str]:
    """The words of a command line for ``name=value`` side by side."""
    words: list[str] = []
    for name, _, value in (item.partition("=") for item in text.split()):
        option = FIELDS[name].option
        if FIELDS[name].kind == "flag":
            words.append(option if value == "true" else f"--no-{option.removeprefix('--')}")
        else:
            words += [option, value]
    return words


def typed(document: dict[str, object], text: str) -> Plan:
    """The plan of ``shardwise explain PLAN`` with an edit's text as options."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return plan_from(parser.parse_args(["plan.json", *options_of(text)]), document)


def edits_of(plan: Plan):
    return chain(
        smaller_edits(plan),
        host_edits(plan),
        faster_edits(plan),
        _communication_edits(plan),
        *(choice.edits(plan) for choice in CHOICES if choice.words(plan)),
    )


def changed(document: dict[str, object], changes: Changes) -> dict[str, object]:
    """A document with changes typed into it."""
    layout = {name: value for name, value in changes if name in LAYOUT_FIELDS}
    recipe = {name: value for name, value in changes if name in RECIPE_FIELDS}
    rest: dict[str, Value] = {name: value for name, value in changes if name not in LAYOUT_FIELDS | RECIPE_FIELDS}
    return document | rest | {"layout": document["layout"] | layout, "recipe": document["recipe"] | recipe}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, object]:
    """Plan files of models and clusters of the catalogue that leave some fields open and break no rule."""
    some = {
        "tp": (1, 2, 4),
        "pp": (1, 2, 4),
        "cp": (1, 2),
        "ep": (1, 2, 4),
        "expert_tp": (1, 2),
        "vpp": (1, 2),
        "dp_replicate": (1, 2),
        "zero_stage": (0, 1, 2, 3),
        "schedule": ("1f1b", "gpipe", "interleaved", "zb-h1"),
        "sequence_parallel": (True, False),
        "reshard_after_forward": (True, False),
        "reshard_size": (2,),
        "defer_grad_reduce": (True, False),
    }
    recipe = {
        "micro_batch_size": (1, 2, 3, 8),
        "global_batch_size": (64, 96),
        "precision": ("bf16-mixed", "fp32", "bf16", "fp8-mixed"),
        "recompute": ("none", "selective", "full"),
        "recompute_layers": (1, 4),
        "recompute_modules": (("core_attn",), ("mlp", "layernorm")),
        "offload": ("none", "optimizer", "parameters"),
        "attention": ("eager",),
        "attention_kernel": ("math", "cudnn"),
        "activation_offload": (True,),
        "compile": (True, False),
        "loss_chunks": (1, 4),
        "adapter": ("none", "lora"),
    }
    shared = {name: st.sampled_from(values) for name, values in some.items()}
    trained = {name: st.sampled_from(values) for name, values in recipe.items()}
    document: dict[str, object] = {
        "model": draw(st.sampled_from(("llama-3.1-8b", "mixtral-8x7b", "gpt2"))),
        "cluster": draw(st.sampled_from(("8xh100-sxm", "16xh100-sxm", "16xa100-sxm-80"))),
        "engine": draw(st.sampled_from(("native", "torchtitan", "megatron", "deepspeed", "fsdp2"))),
        "layout": draw(st.fixed_dictionaries({}, optional=shared)),
        "recipe": {"seq_len": draw(st.sampled_from((512, 1024)))} | draw(st.fixed_dictionaries({}, optional=trained)),
    }
    if document["layout"].get("zero_stage") == 2:  # FSDP's users call two of our fields so
        assume(2 in ENGINES[document["engine"]].zero_stages)
    for _ in range(MOST_FIXES):
        errors = find_errors(read_plan(document))
        if not errors:
            break
        document = changed(document, errors[0].neighbour)
    assume(not find_errors(read_plan(document)))
    return document


MEGATRON = {
    "model": "llama-3.1-8b",
    "cluster": "16xh100-sxm",
    "engine": "megatron",
    "layout": {"tp": 4, "pp": 2, "vpp": 2},
    "recipe": {"seq_len": 4096, "global_batch_size": 64},
}


@example(document=changed(MEGATRON, (("recompute", "full"), ("recompute_layers", 4))))
@example(document=changed(MEGATRON, (("recompute", "selective"), ("recompute_modules", ("mlp",)))))
@example(document=changed(MEGATRON, (("attention_kernel", "math"),)))
@example(document=changed(MEGATRON, (("vpp", 1), ("stage_layers", (15, 17)), ("global_batch_size", None))))
@given(document=documents())
def test_every_edit_is_typed_as_the_options_that_give_its_plan(document):
    plan = read_plan(document)
    proposed = [one for one in edits_of(plan) if one.changes and not find_errors(one.plan)]
    different = {(one.plan.layout, one.plan.recipe): one for one in proposed}.values()
    for one in different:
        text = changes_text(one.changes)
        assert typed(document, text) == one.plan, text
        assert one.plan.global_batch_size == plan.global_batch_size, text


@pytest.mark.parametrize(
    "changes",
    [
        (("recompute", "full"), ("recompute_layers", 4)),
        (("recompute", "selective"), ("recompute_modules", ("mlp",))),
        (("micro_batch_size", 8), ("seq_len", 8192)),
        (("global_batch_size", None), ("micro_batch_size", 2)),
    ],
)
def test_the_number_beside_an_edit_is_what_the_command_predicts_with_it(changes):
    document = changed(MEGATRON, changes)
    shown = [change for change in explain(read_plan(document)).changes if change.effort != HARDWARE]
    assert shown
    for change in shown:
        prediction = predict(typed(document, change.edit))
        assert prediction.memory.needed_bytes == change.needed_bytes
        assert prediction.time.step_s == change.step_s


def test_full_recomputation_takes_back_what_limits_it():
    plan = read_plan(changed(MEGATRON, (("recompute", "full"), ("recompute_layers", 4))))
    (everything,) = (one for one in smaller_edits(plan) if dict(one.changes).get("recompute_layers", 0) is None)
    assert everything.plan.recipe.recompute_layers is None


def test_less_recomputation_is_offered_beside_a_number_of_layers():
    """Megatron refuses selective recomputation of some layers, so the edit takes the number back."""
    plan = read_plan(changed(MEGATRON, (("recompute", "full"), ("recompute_layers", 4))))
    tried = verify_edits(faster_edits(plan), plan=plan, prediction=predict(plan))
    assert "recompute=selective recompute_layers=null" in [change.edit for change in tried]


def test_a_change_of_schedule_has_one_cost():
    """GPipe's bubble is that of 1F1B; chunks and split backwards shorten it."""
    document = changed(MEGATRON, (("engine", "torchtitan"), ("tp", 1), ("vpp", 1)))
    gpipe, split = (read_plan(changed(document, (("schedule", name),))) for name in ("gpipe", "zb-h1"))
    assert usual_schedule(gpipe).cost == "none: the same bubble"
    assert usual_schedule(split).cost == "a longer bubble"
    assert usual_schedule(gpipe) in [one for choice in CHOICES for one in choice.edits(gpipe)]
    assert usual_schedule(gpipe) in list(smaller_edits(gpipe))


def test_fewer_ranks_of_an_axis_take_along_what_they_leave_no_place_for():
    stages = read_plan(changed(MEGATRON, (("vpp", 1), ("stage_layers", (15, 17)))))
    assert dict(fewer_ranks(stages, "pp", 1).changes) == {"pp": 1, "dp_shard": 4, "stage_layers": None}
    experts = read_plan(changed(MEGATRON, (("model", "mixtral-8x7b"), ("expert_tp", 4), ("sequence_parallel", True))))
    assert dict(fewer_ranks(experts, "tp", 1).changes)["expert_tp"] == 1


def test_a_batch_that_would_follow_the_layout_is_written_down():
    plan = read_plan(changed(MEGATRON, (("global_batch_size", None), ("vpp", 1))))
    assert edit(plan, "", 0, loss_chunks=8).changes == (("loss_chunks", 8),)
    assert edit(plan, "", 0, micro_batch_size=2).changes == (("micro_batch_size", 2), ("global_batch_size", 4))
