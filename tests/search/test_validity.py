"""Rules asked once per combination of what they read give the same answer as rules asked about every row."""

from dataclasses import fields, replace

import numpy as np
import pytest

from shardwise.errors import RecipeError
from shardwise.rules import find_errors
from shardwise.rules.book import RULES, error_rules, rules_of
from shardwise.rules.rule import FIGURES
from shardwise.search.bounds import IntRange, SearchBounds
from shardwise.search.candidates import OFFLOADS
from shardwise.search.space import AXES, Space
from shardwise.search.validity import valid_candidates

QUESTIONS = [
    {"model": "llama-3.1-8b", "cluster": "16xh100-sxm", "engine": "native"},
    {"model": "gpt2-xl", "cluster": "8xa100-sxm-80", "engine": "megatron", "seq_len": 1024},
    {"model": "mixtral-8x7b", "cluster": "16xh100-sxm", "engine": "megatron"},
    {"model": "mixtral-8x7b", "cluster": "8xh100-sxm", "engine": "deepspeed"},
    {"model": "qwen3-8b", "cluster": "16xh100-sxm", "engine": "torchtitan", "global_batch_size": 48},
    {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "engine": "accelerate"},
]


def all_rows(space):
    rows = space.degrees()
    for axis in AXES:
        rows = space.grow(rows, axis)
    return rows


def identity(rows, row):
    """A row without the ways to offload that are left to it."""
    return tuple(int(rows.column(name)[row]) for name in rows.names if name != "offload_choices")


def ways_to_offload(rows, row):
    """The positions in ``OFFLOADS`` that a row is searched with."""
    return [mode for mode in range(len(OFFLOADS)) if rows.offload_choices[row] & (1 << mode)]


def rows_as_set(rows):
    return {(*identity(rows, row), mode) for row in range(len(rows)) for mode in ways_to_offload(rows, row)}


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: f"{asked['model']}-{asked['engine']}")
def test_projected_rules_agree_with_asking_every_rule_about_every_row(make_question, asked):
    question = make_question(**asked)
    space = Space(question=question, bounds=SearchBounds(recompute=("none",)))
    rows = all_rows(space)
    rules = error_rules(question.engine)
    sample = np.random.default_rng(5).choice(len(rows), size=min(1500, len(rows)), replace=False)
    allowed = rows_as_set(valid_candidates(space).rows)
    for row in sample:
        stays = rows.plan(int(row), question=question)
        for mode in ways_to_offload(rows, int(row)):
            plan = replace(stays, recipe=replace(stays.recipe, offload=OFFLOADS[mode]))
            broken = [rule.name for rule in rules if rule.breaks(plan)]
            key = (*identity(rows, int(row)), mode)
            assert (key in allowed) == (not broken), (plan.layout, plan.recipe.micro_batch_size, broken)


OPTIONS = [
    {},
    {"moment_dtype": "bf16", "fused_optimizer": True, "broadcast_weights": True, "overlap_grad_reduce": True},
    {"moment_dtype": "fp32", "precision": "bf16", "overlap_grad_reduce": False, "recompute": "full"},
    {"recompute": "selective", "recompute_modules": ("core_attn",), "activation_func_fp8_input_store": True},
    {"recompute": "full", "recompute_layers": 0, "attention": "eager", "compile": True, "offload": "parameters"},
    {"recompute": "full", "recompute_layers": 99, "optimizer": "muon", "adapter": "lora", "offload": "nvme"},
]
"""Of a recipe: what a search is asked with, or chooses itself."""


def watched(record, seen):
    """The record, writing the names of its fields that are read into a set."""
    names = {field.name for field in fields(record)}

    class Watched(type(record)):
        def __getattribute__(self, name):
            if name in names:
                seen.add(name)
            return super().__getattribute__(name)

    return Watched(**{name: getattr(record, name) for name in names})


def unnamed_fields(rule, plan):
    """Fields that a rule reads of a plan and does not name."""
    named = {part for name in rule.reads for part in FIGURES.get(name, (name,))}
    seen = set()
    layout, recipe = (watched(record, seen) for record in (plan.layout, plan.recipe))
    seen.clear()
    rule.breaks(replace(plan, layout=layout, recipe=recipe))
    return seen - named


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: f"{asked['model']}-{asked['engine']}")
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: ",".join(options) or "plain")
def test_a_rule_reads_no_field_that_it_does_not_name(make_question, asked, options):
    question = make_question(**asked)
    rows = all_rows(Space(question=question, bounds=SearchBounds()))
    sample = np.random.default_rng(7).choice(len(rows), size=min(100, len(rows)), replace=False)
    for plan in rows.plans(sample.tolist(), question=question):
        for rule in rules_of(question.engine):
            if rule.reads is not None:
                found = unnamed_fields(rule, replace(plan, recipe=replace(plan.recipe, **options)))
                assert not found, (rule.name, found)


def test_a_rule_that_forgets_to_name_a_field_is_found_out(make_question):
    rule = next(rule for rule in RULES if rule.name == "layout-heads-over-cp")
    plan = make_question(engine="deepspeed")
    plan = replace(plan, layout=replace(plan.layout, cp=2))
    assert unnamed_fields(rule, plan) == set()
    assert unnamed_fields(replace(rule, reads=("cp",)), plan) == {"tp"}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_made_of_its_fields(make_question, name):
    plan = make_question()
    record = plan if name == "num_microbatches" else plan.layout
    seen = set()
    layout, recipe = watched(plan.layout, seen), watched(plan.recipe, seen)
    seen.clear()
    getattr(replace(plan, layout=layout, recipe=recipe) if record is plan else layout, name)
    assert seen == set(FIGURES[name])


def test_every_rule_that_a_search_asks_says_what_it_reads():
    assert all(rule.reads is not None for rule in RULES if rule.severity == "error")


def test_a_rule_that_does_not_say_what_it_reads_is_asked_about_every_row(make_question, monkeypatch):
    question = make_question(model="gpt2", cluster="4xh100-sxm", seq_len=512, global_batch_size=8)
    space = Space(question=question, bounds=SearchBounds())
    now = valid_candidates(space)
    silent = tuple(replace(rule, reads=None) for rule in rules_of(question.engine))
    monkeypatch.setattr("shardwise.search.validity.rules_of", lambda _engine: silent)
    found = valid_candidates(space)
    assert rows_as_set(found.rows) == rows_as_set(now.rows)
    assert sum(group.count for group in found.rejected) == sum(group.count for group in now.rejected)


def test_considered_candidates_are_either_valid_or_counted_under_a_rule(make_question):
    space = Space(question=make_question(cluster="16xh100-sxm"), bounds=SearchBounds())
    found = valid_candidates(space)
    num_valid = int(space.num_decorations(found.rows).sum())
    assert found.considered == num_valid + sum(group.count for group in found.rejected)


@pytest.mark.parametrize("engine", ["native", "deepspeed", "torchtitan"])
def test_ways_to_offload_are_counted_under_the_rule_they_break(make_question, engine):
    question = make_question(model="gpt2", cluster="2xh100-sxm", engine=engine, seq_len=512, global_batch_size=4)
    space = Space(question=question, bounds=SearchBounds(recompute=("none",), activation_offload=False))
    found = valid_candidates(space)
    kept = rows_as_set(found.rows)
    rows, valid = all_rows(space), set()
    for mode, name in enumerate(OFFLOADS):
        if name not in space.offloads:
            continue
        asked = replace(rows, offload=np.full(len(rows), mode))
        plans = [asked.plan(row, question=question) for row in range(len(rows))]
        valid |= {
            (*identity(rows, row), mode)
            for row, plan in enumerate(plans)
            if mode in ways_to_offload(rows, row) and not find_errors(plan)
        }
    assert kept == valid
    assert int(space.num_decorations(found.rows).sum()) == len(valid)


def test_a_rejection_carries_an_example_with_numbers_and_a_fix(make_question):
    bounds = SearchBounds(tp=IntRange(low=16, high=16))
    asked = make_question(cluster="16xh100-sxm", engine="torchtitan")
    found = valid_candidates(Space(question=asked, bounds=bounds))
    assert len(found.rows) == 0
    group = found.rejected[0]
    assert group.rule == "layout-kv-heads-over-tp"
    assert "tp=16" in group.example
    assert "tp=8" in group.fix


def test_a_broken_rule_about_the_recipe_stops_the_search_with_its_fix(make_question):
    question = make_question(model="gpt2", seq_len=4096)
    with pytest.raises(RecipeError) as refusal:
        valid_candidates(Space(question=question, bounds=SearchBounds()))
    assert refusal.value.code == "recipe-position-table"


def test_tensor_parallelism_over_two_servers_is_looked_at_when_it_is_asked_for(make_question):
    question = make_question(model="llama-2-7b", cluster="16xh100-sxm")
    open_bounds, asked = SearchBounds(), SearchBounds(tp=IntRange(low=16, high=16))
    assert set(valid_candidates(Space(question=question, bounds=open_bounds)).rows.tp) == {1, 2, 4, 8}
    assert set(valid_candidates(Space(question=question, bounds=asked)).rows.tp) == {16}
