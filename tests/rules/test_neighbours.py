"""Every refusal comes with a neighbour that really keeps the rule."""

from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rules.samples import llama_30b, make_plan
from shapes import cluster, llama_3_70b
from shardwise.engines.table import EngineName
from shardwise.layout import Layout
from shardwise.plan_file import read_plan
from shardwise.rules import apply_changes, describe_changes, find_errors, find_refusals, require_valid
from shardwise.rules.changes import LAYOUT_FIELDS, RECIPE_FIELDS, complete
from shardwise.rules.defaults import fill_again
from strategies import plans, runnable_plans

MANY = settings(max_examples=60)


def check_neighbours(plan):
    before = {refusal.rule for refusal in find_errors(plan)}
    for refusal in find_refusals(plan):
        assert refusal.neighbour, refusal
        assert refusal.fix.startswith(describe_changes(refusal.neighbour))
        neighbour = apply_changes(plan, refusal.neighbour)
        assert refusal.rule not in {other.rule for other in find_refusals(neighbour)}, refusal
        newly_broken = {other.rule for other in find_errors(neighbour)} - before
        assert not newly_broken, (refusal, newly_broken)


@MANY
@given(plans())
def test_a_neighbour_keeps_the_rule_and_breaks_no_rule_that_held_before(plan):
    check_neighbours(plan)


def test_chunks_that_dualpipe_does_not_have_are_refused_with_a_neighbour():
    layout = Layout(pp=2, vpp=4, schedule="dualpipe", zero_stage=1)
    check_neighbours(make_plan(llama_30b(), engine="hai-llm", num_gpus=2, layout=layout, global_batch_size=8))


@MANY
@given(plans())
def test_following_the_fixes_one_after_another_ends_at_a_valid_plan(plan):
    for _ in range(40):
        errors = find_errors(plan)
        if not errors:
            break
        plan = apply_changes(plan, errors[0].neighbour)
    assert find_errors(plan) == ()


@MANY
@given(runnable_plans(), st.data())
def test_one_wrong_degree_is_mended_by_a_plan_without_errors(plan, data):
    field = data.draw(st.sampled_from(("tp", "pp", "dp_shard", "cp", "ep", "vpp")))
    degree = data.draw(st.sampled_from((3, 5, 7, 16, 64)))
    plan = replace(plan, layout=replace(plan.layout, **{field: degree}))
    errors = find_errors(plan)
    for error in errors:
        check_neighbours(plan)
        if len(errors) == 1:
            assert find_errors(apply_changes(plan, error.neighbour)) == ()


@MANY
@given(plans())
def test_errors_are_those_refusals_that_keep_a_plan_from_running(plan):
    assert find_errors(plan) == tuple(item for item in find_refusals(plan) if item.severity == "error")


@MANY
@given(plans())
def test_errors_come_before_warnings(plan):
    severities = [item.severity for item in find_refusals(plan)]
    assert severities == sorted(severities)


@given(runnable_plans())
@settings(max_examples=100)
def test_a_plan_that_divides_everything_is_not_refused(plan):
    assert find_errors(plan) == ()
    require_valid(plan)


LAYOUT_CHOICES = {
    "tp": (1, 2, 3, 4, 7, 8),
    "pp": (1, 2, 3, 4, 8),
    "cp": (1, 2, 3),
    "ep": (1, 2, 3, 8),
    "dp_shard": (1, 2, 4, 8, -1),
    "dp_replicate": (1, 2, 3),
    "vpp": (1, 2, 3),
    "zero_stage": (0, 1, 2, 3),
    "schedule": ("gpipe", "1f1b", "interleaved", "zb-h1"),
    "sequence_parallel": (True, False),
    "expert_tp": (1, 2, 3),
}


@st.composite
def documents(draw):
    """Plan files that leave most of the layout open, as people write them."""
    layout = {
        name: draw(st.sampled_from(choices)) for name, choices in LAYOUT_CHOICES.items() if draw(st.integers(0, 2)) == 0
    }
    recipe = {
        "seq_len": draw(st.sampled_from((1000, 4096))),
        "global_batch_size": draw(st.sampled_from((None, 64, 100))),
    }
    return {
        "model": draw(st.sampled_from(("llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "gpt2"))),
        "cluster": draw(st.sampled_from(("8xh100-sxm", "16xh100-sxm", "3xdgx-h100", "2xgb200-nvl72"))),
        "recipe": recipe,
        "layout": layout,
        "engine": draw(st.sampled_from(get_args(EngineName))),
    }


def with_typed(document, changes):
    """The document with the fields of a fix written into it, as its reader would."""
    typed = {**document, "recipe": dict(document["recipe"]), "layout": dict(document["layout"])}
    for name, value in changes:
        part = typed["layout"] if name in LAYOUT_FIELDS else typed["recipe"] if name in RECIPE_FIELDS else typed
        part[name] = value
    return typed


OPEN_EXPERT_TP = {
    "model": "mixtral-8x7b",
    "cluster": "2xgb200-nvl72",
    "recipe": {"seq_len": 1000, "global_batch_size": 64},
    "layout": {"tp": 3, "ep": 2, "dp_shard": 1, "dp_replicate": 1},
    "engine": "native",
}
"""A fix of ep alone would have expert_tp filled with tp, which does not divide the width of experts."""


@settings(max_examples=250)
@example(OPEN_EXPERT_TP)
@given(documents())
def test_a_fix_typed_into_a_plan_file_that_leaves_fields_open_keeps_the_rule(document):
    """The fields left open are filled again, and may be filled otherwise. Only the first refusal shows its fix."""
    errors = find_errors(read_plan(document))
    for error in errors[:1]:
        again = {other.rule for other in find_errors(read_plan(with_typed(document, error.neighbour)))}
        assert again <= {other.rule for other in errors} - {error.rule}, (document, error.fix)


def test_a_fix_names_what_naming_another_field_would_have_filled():
    """16 GPUs under ZeRO-0: pp=1 frees ranks for dp_replicate and, once that is named, for dp_shard; no batch fits."""
    document = {
        "model": "bert-base",
        "cluster": "16xh100-sxm",
        "recipe": {"seq_len": 1, "micro_batch_size": 5, "global_batch_size": 100},
        "layout": {"zero_stage": 0, "cp": 7, "pp": 7},
    }
    before = find_refusals(read_plan(document))
    inside = next(item for item in before if item.rule == "engine-native-inside")
    assert {"dp_replicate", "dp_shard"} <= dict(inside.neighbour).keys()
    again = {item.rule for item in find_errors(read_plan(with_typed(document, inside.neighbour)))}
    assert again <= {item.rule for item in before}


def test_a_plan_that_was_changed_since_it_was_read_leaves_nothing_open():
    """Its expert_tp of 1 beside tp=3 was chosen; no file would be filled so."""
    plan = replace(read_plan(OPEN_EXPERT_TP), layout=Layout(tp=3, dp_shard=48))
    error = next(item for item in find_errors(plan) if item.rule == "recipe-batch-arithmetic")
    assert error.fix == "set global_batch_size=48"


@pytest.mark.parametrize("engine", ["fsdp2", "fsdp1", "torchtitan", "accelerate"])
def test_what_zero_2_of_fsdp_stands_for_is_filled_again_as_it_was_read(engine):
    recipe, layout = {"seq_len": 4096, "micro_batch_size": 1}, {"zero_stage": 2}
    said = {"model": "llama-3-8b", "cluster": "8xh100-sxm", "engine": engine, "recipe": recipe, "layout": layout}
    plan = read_plan(said)
    assert (plan.layout.zero_stage, plan.layout.reshard_after_forward) == (3, False)
    assert fill_again(plan, ()) == plan
    larger = fill_again(plan, (("micro_batch_size", 2),))
    assert (larger.layout.zero_stage, larger.layout.reshard_after_forward) == (3, False)


def test_without_sharding_a_fix_fills_the_axis_that_the_plan_file_fills():
    """144 GPUs, tp=7 and pp=8: dp_replicate=2 was filled in, and is filled in again when dp_shard is stated."""
    document = {
        "model": "llama-3.1-70b",
        "cluster": "2xgb200-nvl72",
        "recipe": {"seq_len": 8192},
        "layout": {"tp": 7, "pp": 8, "zero_stage": 0},
    }
    error = next(item for item in find_errors(read_plan(document)) if item.rule == "layout-world-size")
    assert "dp_shard" not in dict(error.neighbour)
    assert find_errors(read_plan(with_typed(document, error.neighbour))) == ()


def test_a_fix_of_tp_takes_the_freed_ranks_and_the_batch_along():
    plan = replace(
        make_plan(llama_3_70b(), layout=Layout(dp_shard=3, tp=16), global_batch_size=33), cluster=cluster(48)
    )
    error = next(item for item in find_refusals(plan) if item.rule == "layout-tp-crosses-nodes")
    assert error.neighbour == (("tp", 8), ("dp_shard", 6), ("global_batch_size", 36))
    assert error.fix == "set tp=8, dp_shard=6 and global_batch_size=36"


def test_a_batch_rounds_to_the_nearer_side():
    plan = make_plan(layout=Layout(dp_shard=7), micro_batch_size=2, global_batch_size=264)
    assert find_errors(plan)[0].fix == "set global_batch_size=266"


def test_a_smaller_micro_batch_is_preferred_to_another_global_batch():
    plan = make_plan(layout=Layout(dp_shard=8), micro_batch_size=3, global_batch_size=64)
    assert find_errors(plan)[0].fix == "set micro_batch_size=2"


def test_completing_a_change_touches_nothing_else_when_nothing_follows():
    plan = make_plan(layout=Layout(dp_shard=8), global_batch_size=64)
    assert complete(plan, (("recompute", "full"),)) == (("recompute", "full"),)


def test_changes_name_fields_of_layout_recipe_and_plan_only():
    assert LAYOUT_FIELDS.isdisjoint(RECIPE_FIELDS)
    plan = apply_changes(make_plan(), (("tp", 2), ("seq_len", 128), ("engine", "megatron")))
    assert (plan.layout.tp, plan.recipe.seq_len, plan.engine) == (2, 128, "megatron")


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ((("tp", 4),), "set tp=4"),
        ((("tp", 4), ("compile", False)), "set tp=4 and compile=false"),
        ((("pp", 1), ("vpp", 1), ("stage_layers", (7, 8))), "set pp=1, vpp=1 and stage_layers=[7,8]"),
        ((("stage_layers", None),), "set stage_layers=null"),
    ],
)
def test_changes_are_written_as_a_plan_file_would_say_them(changes, text):
    assert describe_changes(changes) == text
