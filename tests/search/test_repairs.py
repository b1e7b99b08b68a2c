"""When every layout breaks a rule: the nearest change of each input that has a plan."""

import pytest

from shardwise.search import IntRange, SearchBounds, search
from shardwise.search.repairs import batch_repair, repairs

FOUR = IntRange(low=4, high=4, values=(4,))


@pytest.fixture(scope="module")
def found(make_question):
    """Three sequences a step for four ranks that read different ones."""
    question = make_question(model="gpt2", cluster="4xh100-sxm", seq_len=1024, global_batch_size=3)
    return repairs(question, SearchBounds(dp_shard=FOUR))


def test_the_nearest_batch_fewer_gpus_and_free_axes_are_tried(found):
    assert [relief.change for relief in found] == ["global_batch_size=4", "no bound on dp_shard"]


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
    assert changes == ["global_batch_size=8", "max_gpus=2", "no bound on tp"]


def test_a_batch_is_proposed_where_what_keeps_the_rules_is_too_big(make_question):
    question = make_question(model="llama-3.1-8b", cluster="5xh100-sxm", seq_len=8192, global_batch_size=511)
    relief = batch_repair(question, SearchBounds())
    assert relief.change == "global_batch_size=510"
    assert relief.plan.recipe.global_batch_size == 510
    assert relief.needed_bytes <= question.cluster.gpu.memory_bytes


@pytest.mark.parametrize(("asked", "proposed"), [(1, 4), (5, 4), (7, 8)])
def test_the_nearest_batch_is_tried_first_on_either_side(make_question, asked, proposed):
    """None is not a batch, though nothing is nearer to one sequence."""
    question = make_question(model="gpt2", cluster="4xh100-sxm", seq_len=1024, global_batch_size=asked)
    assert batch_repair(question, SearchBounds(dp_shard=FOUR)).change == f"global_batch_size={proposed}"


def test_no_batch_is_proposed_where_the_ranks_share_the_one_that_is_asked_for(make_question):
    question = make_question(model="llama-3.1-8b", cluster="5xh100-sxm", seq_len=8192, global_batch_size=510)
    assert batch_repair(question, SearchBounds()) is None


def test_the_fix_of_the_rule_that_all_layouts_break_is_proposed(make_question):
    """Schedules that split backward are refused for compiled modules: the fix that the table of rules shows."""
    question = make_question(model="gpt2", cluster="4xh100-sxm", seq_len=1024, global_batch_size=16, compile=True)
    bounds = SearchBounds(schedule=("zbv",), tp=IntRange(low=1, high=1))
    found = search(model=question.model, cluster=question.cluster, recipe=question.recipe, bounds=bounds)
    assert not found.plans
    uncompiled, free = found.repairs
    assert [uncompiled.change, free.change] == ["compile=false", "no bound on schedule"]
    assert uncompiled.plan.layout.schedule == "zbv"
    assert not uncompiled.plan.recipe.compile
    assert free.plan.layout.tp == 1


def test_fixes_of_rules_stay_inside_the_bounds_where_one_does(make_question):
    """More chunks than layers: fewer stages, and not the schedule that was not asked for."""
    question = make_question(model="gpt2", cluster="8xh100-sxm", seq_len=1024, global_batch_size=64, compile=False)
    found = search(
        model=question.model,
        cluster=question.cluster,
        recipe=question.recipe,
        bounds=SearchBounds(schedule=("zbv",), pp=IntRange(low=2, high=8)),
    )
    (too_deep,) = [group for group in found.rejected if group.rule == "layout-layers-over-pp"]
    assert "pp" in dict(too_deep.changes)
    assert "schedule" not in dict(too_deep.changes)


def test_a_fix_changes_a_bound_where_no_other_mends_the_rule(make_question):
    question = make_question(model="gpt2", cluster="8xh100-sxm", seq_len=1024, global_batch_size=64)
    bounds = SearchBounds(pp=IntRange(low=8, high=8), schedule=("zbv",))
    found = search(model=question.model, cluster=question.cluster, recipe=question.recipe, bounds=bounds)
    (too_deep,) = [group for group in found.rejected if group.rule == "layout-layers-over-pp"]
    assert set(dict(too_deep.changes)) & {"pp", "schedule"}


def test_a_batch_nearby_comes_before_a_sequence_that_cp_divides(make_question):
    """63 GPUs were told to take sequences of 8,190 tokens, or nothing at all; 252 instead of 256 sequences is the
    answer."""
    question = make_question(model="llama-3.1-8b", cluster="63xh100-sxm", seq_len=8192, global_batch_size=256)
    found = search(model=question.model, cluster=question.cluster, recipe=question.recipe)
    assert not found.plans
    assert found.repairs[0].change == "global_batch_size=252"
