"""When every layout breaks a rule: the nearest change of each input that has a plan."""

import pytest

from shardwise.search import IntRange, SearchBounds
from shardwise.search.repairs import batch_repair, repairs

FOUR = IntRange(low=4, high=4, values=(4,))


@pytest.fixture(scope="module")
def found(make_question):
    """Three sequences a step for four ranks that read different ones."""
    question = make_question(model="gpt2", cluster="4xh100-sxm", seq_len=1024, global_batch_size=3)
    return repairs(question, SearchBounds(dp_shard=FOUR))


def test_the_nearest_batch_fewer_gpus_and_free_axes_are_tried(found):
    assert [relief.change for relief in found] == ["global_batch_size=4", "no bounds on the axes"]


def test_every_repair_has_a_plan_that_holds_it(found):
    batch, free = found
    assert batch.plan.recipe.global_batch_size == 4
    assert batch.plan.layout.dp_shard == 4
    assert free.plan.recipe.global_batch_size == 3
    assert free.plan.layout.world_size == 4


def test_fewer_gpus_are_tried_where_the_batch_is_smaller_than_they_are(make_question):
    question = make_question(model="gpt2", cluster="8xh100-sxm", seq_len=1024, global_batch_size=2)
    one = IntRange(low=1, high=1)
    changes = [relief.change for relief in repairs(question, SearchBounds(tp=one, cp=one, pp=one))]
    assert changes == ["global_batch_size=8", "max_gpus=2", "no bounds on the axes"]


def test_a_batch_is_proposed_where_what_keeps_the_rules_is_too_big(make_question):
    question = make_question(model="llama-3.1-8b", cluster="5xh100-sxm", seq_len=8192, global_batch_size=511)
    relief = batch_repair(question, SearchBounds())
    assert relief.change == "global_batch_size=510"
    assert relief.plan.recipe.global_batch_size == 510
    assert relief.needed_bytes <= question.cluster.gpu.memory_bytes


def test_no_batch_is_proposed_where_the_ranks_share_the_one_that_is_asked_for(make_question):
    question = make_question(model="llama-3.1-8b", cluster="5xh100-sxm", seq_len=8192, global_batch_size=510)
    assert batch_repair(question, SearchBounds()) is None
