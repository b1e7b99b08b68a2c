"""Rules asked once per combination of what they read give the same answer as rules asked about every row."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.errors import RecipeError
from shardwise.rules import find_errors
from shardwise.rules.book import RANGE_RULES, RULES, error_rules
from shardwise.search.bounds import IntRange, SearchBounds
from shardwise.search.candidates import OFFLOADS
from shardwise.search.space import AXES, Space
from shardwise.search.validity import RULE_COLUMNS, TRUE_BY_CONSTRUCTION, valid_candidates

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


def test_every_error_rule_says_what_it_reads():
    errors = {rule.name for rule in (*RANGE_RULES, *RULES) if rule.severity == "error"}
    assert errors == set(RULE_COLUMNS) | set(TRUE_BY_CONSTRUCTION)


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
    found = valid_candidates(Space(question=make_question(cluster="16xh100-sxm"), bounds=bounds))
    assert len(found.rows) == 0
    group = found.rejected[0]
    assert group.rule == "layout-tp-crosses-nodes"
    assert "tp=16" in group.example
    assert "tp=8" in group.fix


def test_a_broken_rule_about_the_recipe_stops_the_search_with_its_fix(make_question):
    question = make_question(model="gpt2", seq_len=4096)
    with pytest.raises(RecipeError) as refusal:
        valid_candidates(Space(question=question, bounds=SearchBounds()))
    assert refusal.value.code == "recipe-position-table"
