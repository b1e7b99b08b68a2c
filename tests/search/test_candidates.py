"""Columns grow, shrink and answer look-ups without changing their meaning."""

from dataclasses import replace

import numpy as np
import pytest

from shardwise.rules.book import error_rules
from shardwise.search.bounds import IntRange, SearchBounds
from shardwise.search.candidates import Candidates, expand, group_rows, modules_of, option_counts
from shardwise.search.space import AXES, Space
from shardwise.search.validity import Sieve


def enumerate_all(question, bounds=None):
    space = Space(question=question, bounds=bounds or SearchBounds())
    rows = space.degrees()
    for axis in AXES:
        rows = space.grow(rows, axis)
    return space, rows


def test_every_row_uses_every_gpu(make_question):
    _, rows = enumerate_all(make_question(cluster="3xdgx-h100", global_batch_size=24))
    world = rows.tp * rows.cp * rows.pp * rows.dp_replicate * rows.dp_shard
    assert set(world.tolist()) == {24}


def test_no_candidate_is_listed_twice(make_question):
    _, rows = enumerate_all(make_question(model="mixtral-8x7b"))
    table = np.stack([rows.column(name) for name in rows.names], axis=1)
    assert len(np.unique(table, axis=0)) == len(rows)


def test_the_number_of_descendants_is_what_enumeration_produces(make_question):
    space, rows = enumerate_all(make_question(model="mixtral-8x7b", cluster="16xh100-sxm"))
    assert int(space.num_descendants(space.degrees(), after=None).sum()) == int(space.num_decorations(rows).sum())
    kept = SearchBounds(recompute=("none",), offload=("none",), activation_offload=False)
    plain, undecorated = enumerate_all(space.question, kept)
    assert int(plain.num_descendants(plain.degrees(), after=None).sum()) == len(undecorated)


def test_a_row_stands_for_every_recipe_it_can_be_decorated_with(make_question):
    """32 blocks on 4 stages: none, 1 to 8 blocks selectively or wholly; three ways to offload; activations or not."""
    two = IntRange(low=2, high=2)
    bounds = SearchBounds(pp=IntRange(low=4, high=4), tp=IntRange(low=1, high=1), dp_shard=two)
    space, rows = enumerate_all(make_question(), bounds)
    assert set(space.num_decorations(rows).tolist()) == {(1 + 2 * 8) * 3 * 2}


def test_a_row_of_an_engine_that_recomputes_by_module_stands_for_its_sets_of_modules(make_question):
    """48 blocks on 4 stages: none, 1 to 12 of them wholly, or one of the sets in every block."""
    two = IntRange(low=2, high=2)
    bounds = SearchBounds(pp=IntRange(low=4, high=4), tp=IntRange(low=1, high=1), dp_shard=two, offload=("none",))
    space, rows = enumerate_all(make_question(model="qwen3-30b-a3b", engine="megatron"), bounds)
    assert set(space.num_decorations(rows).tolist()) == {1 + 12 + len(space.module_sets)}


def test_expanding_gives_each_row_its_own_options_in_order(make_question):
    space = Space(question=make_question(), bounds=SearchBounds())
    rows = space.degrees().take(np.asarray([0, 1]))
    keys = [(int(rows.dp_replicate[row]), int(rows.pp[row])) for row in range(2)]
    options = {keys[0]: [(5, 7), (11, 13)], keys[1]: [(17, 19)]}
    grown = expand(rows, names=("vpp", "ep"), keys=("dp_replicate", "pp"), options=lambda key: options[key])
    assert list(zip(grown.vpp.tolist(), grown.ep.tolist(), strict=True)) == [(5, 7), (11, 13), (17, 19)]
    assert option_counts(rows, keys=("dp_replicate", "pp"), options=lambda key: options[key]).tolist() == [2, 1]


def test_a_row_becomes_the_plan_it_stands_for(make_question):
    question = make_question()
    _, rows = enumerate_all(question)
    plan = rows.plan(len(rows) - 1, question=question)
    assert plan.layout.world_size == 8
    assert plan.recipe.global_batch_size == question.recipe.global_batch_size
    assert plan.recipe.micro_batch_size == int(rows.micro_batch_size[-1])
    assert plan.layout.zero_stage == int(rows.zero_stage[-1])


def test_a_row_has_the_shard_sizes_of_its_layout(make_question):
    """DualPipe's two copies of the model among them."""
    question = make_question(engine="hai-llm")
    _, rows = enumerate_all(question, SearchBounds(schedule=("1f1b", "dualpipe"), pp=IntRange(low=2, high=4)))
    layouts = [plan.layout for plan in rows.plans(range(len(rows)), question=question)]
    assert rows.model_copies.tolist() == [layout.model_copies for layout in layouts]
    assert rows.state_shard_size.tolist() == [layout.state_shard_size for layout in layouts]
    assert set(rows.model_copies.tolist()) == {1, 2}


def test_a_column_of_one_value_takes_no_room_however_rows_are_taken(make_question):
    _, rows = enumerate_all(make_question())
    chosen = np.asarray([2, 2, 0])
    for some in (rows.take(chosen), rows.take(rows.tp > 1), rows.take(slice(None, None, 3))):
        assert some.ep.base is not None
        assert some.ep.base.nbytes == 8
        assert set(some.ep.tolist()) == {1}
    assert rows.take(chosen).tp.tolist() == [int(rows.tp[2]), int(rows.tp[2]), int(rows.tp[0])]
    assert [column.tolist() for column in group_rows([rows.ep, rows.tp])] == [
        column.tolist() for column in group_rows([rows.ep.copy(), rows.tp])
    ]


def test_rules_that_read_the_same_columns_share_their_plans(make_question, monkeypatch):
    made: list[int] = []
    plans = Candidates.plans
    monkeypatch.setattr(
        Candidates,
        "plans",
        lambda self, rows, **asked: [made.append(row) or plans(self, [row], **asked)[0] for row in rows],
    )
    space = Space(question=make_question(), bounds=SearchBounds())
    rows = enumerate_all(make_question())[1]
    rules = [rule for rule in error_rules("native") if (rule.reads or ())[-3:] == ("pp", "vpp", "schedule")]
    keys = set(zip(rows.pp.tolist(), rows.vpp.tolist(), rows.schedule.tolist(), strict=True))
    assert len(rules) > 3
    Sieve(space=space).keep(rules, rows, axis="micro_batch_size")
    assert len(made) <= len(keys) + 2 * len(rules)


def test_modules_of_rows_that_differ_in_them_cannot_be_read_as_those_of_all(make_question):
    """They were the question's in silence: a rule or a formula would have been right for no row."""
    question = make_question(engine="megatron", recompute="selective")
    rows = Space(question=question, bounds=SearchBounds()).degrees().take(np.asarray([0, 0]))
    same, different = (replace(rows, recompute_modules=np.asarray(bits)) for bits in ([2, 2], [1, 2]))
    assert same.columns(question).recipe.recompute_modules == modules_of(2)
    modules = different.columns(question).recipe.recompute_modules
    for read in (bool, tuple, lambda found: found == ("mlp",), lambda found: "mlp" in found):
        with pytest.raises(TypeError):
            read(modules)
