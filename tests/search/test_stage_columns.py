"""Rows as plans whose numbers are columns, and functions of plain numbers asked about them."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from shardwise.search.bounds import SearchBounds
from shardwise.search.candidates import Words
from shardwise.search.space import Space
from shardwise.search.stage_columns import AskedOnce, StageColumns
from shardwise.search.validity import valid_candidates
from shardwise.step.held_stage import pipeline_of
from shardwise.step.native_engine import (
    exchanges_gradients,
    frees_after_forward,
    gathers_every_micro_batch,
    is_replicated,
    reduces_every_micro_batch,
    splits_backward,
    spreads_vocabulary,
    uses_ddp,
)

PREDICATES = {
    "is_replicated": lambda plan: is_replicated(plan.layout),
    "uses_ddp": lambda plan: uses_ddp(layout=plan.layout, recipe=plan.recipe),
    "frees_after_forward": lambda plan: frees_after_forward(layout=plan.layout, recipe=plan.recipe),
    "gathers_every_micro_batch": lambda plan: gathers_every_micro_batch(layout=plan.layout, recipe=plan.recipe),
    "reduces_every_micro_batch": lambda plan: reduces_every_micro_batch(plan.layout),
    "splits_backward": lambda plan: splits_backward(plan.layout),
    "spreads_vocabulary": spreads_vocabulary,
    "exchanges_gradients": exchanges_gradients,
    "model_copies": lambda plan: plan.layout.model_copies,
    "expert_state_shard_size": lambda plan: plan.layout.expert_state_shard_size,
    "num_microbatches": lambda plan: plan.num_microbatches,
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    height: int
    width: int


def rows_of(question, **bounds):
    rows = valid_candidates(Space(question=question, bounds=SearchBounds(**bounds))).rows
    chosen = np.random.default_rng(3).choice(len(rows), size=200)
    return replace(rows.take(chosen), offload=np.arange(200) % 2, recompute=np.arange(200) % 3)


@pytest.mark.parametrize("fact", PREDICATES, ids=str)
@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_a_fact_of_columns_is_that_of_every_row(make_question, fact, adapter):
    question = make_question(adapter=adapter, cluster="16xh100-sxm")
    rows = rows_of(question)
    found = rows.of_each(PREDICATES[fact](rows.columns(question)))
    assert found.tolist() == [PREDICATES[fact](rows.plan(row, question=question)) for row in range(len(rows))]


def test_a_condition_on_a_column_is_refused_and_never_wrong(make_question):
    question = make_question(cluster="16xh100-sxm")
    layout = rows_of(question).columns(question).layout
    with pytest.raises(ValueError, match="ambiguous"):
        bool(layout.tp > 1)
    with pytest.raises(TypeError):
        max(layout.tp, "1")
    with pytest.raises(TypeError):
        hash(layout)


def test_a_column_of_words_says_which_rows_have_one():
    words = Words(np.asarray([0, 1, 1]), ("none", "full"))
    assert (words == "full").tolist() == [False, True, True]
    assert (words == "selective").tolist() == [False, False, False]


def test_a_function_is_asked_once_for_all_rows_that_ask_the_same():
    asked = []

    def doubled(shape, depth, *, is_long):
        asked.append((shape, depth, is_long))
        return Shape(height=2 * shape.height, width=depth + is_long)

    ask = AskedOnce()
    heights = np.asarray([3.0, 5.0, 3.0, 3.0])
    is_long = np.asarray([True, False, True, False])
    found = ask(doubled, Shape(height=heights, width=7), 11, is_long=is_long)
    assert found.height.tolist() == [6, 10, 6, 6]
    assert found.width.tolist() == [12, 11, 12, 11]
    assert len(asked) == 3
    ask(doubled, Shape(height=heights[:2], width=7), 11, is_long=is_long[:2])
    assert len(asked) == 3
    assert all(isinstance(shape.height, int) and isinstance(long, bool) for shape, _, long in asked)


def test_columns_in_other_places_are_other_questions():
    def transposed(shape):
        return Shape(height=shape.width, width=shape.height)

    ask, column = AskedOnce(), np.asarray([3.0, 5.0])
    assert ask(transposed, Shape(height=column, width=7)).height == 7
    assert ask(transposed, Shape(height=7, width=column)).height.tolist() == [3, 5]


def test_what_all_rows_have_in_common_stays_a_number():
    found = AskedOnce()(lambda height: Shape(height=17, width=height), np.asarray([2.0, 3.0]))
    assert found.height == 17
    assert found.width.tolist() == [2, 3]


def test_every_stage_that_is_asked_about_is_given_once(make_question):
    question = make_question(cluster="16xh100-sxm")
    rows = rows_of(question)
    stages = StageColumns(question=question)
    found = np.zeros(len(rows), dtype=np.int64)
    for row, context in stages.of(rows, stages.fullest):
        np.add.at(found, row, 1)
        assert np.broadcast_to(context.held.index, len(row)).max() < rows.pp[row].max()
    expected = [
        len(stages.fullest(replace(pipeline, recompute_layers=None)))
        for pipeline in (pipeline_of(rows.plan(row, question=question)) for row in range(len(rows)))
    ]
    assert found.tolist() == expected
