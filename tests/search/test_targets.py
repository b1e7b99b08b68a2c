"""Deadlines and budgets: what meets them, and the nearest figures that are met."""

from dataclasses import replace

import pytest

from shardwise.errors import RecipeError
from shardwise.layout import Layout
from shardwise.predict import predict
from shardwise.rules.token_batch import assumed_batch
from shardwise.search import IntRange, SearchBounds
from shardwise.search.evaluation import Evaluated
from shardwise.search.one_pass import find
from shardwise.search.search import question_of
from shardwise.search.targets import looser_targets, meets, missed_targets, nearest_meeting, require_countable


@pytest.fixture(scope="module")
def found(make_question):
    """A plan whose run takes 41.234 days and 123,456 dollars."""
    question = make_question(model="gpt2", seq_len=1024, global_batch_size=64, tokens=1e12)
    plan = replace(question, layout=Layout(dp_shard=8))
    prediction = predict(plan)
    cost = replace(prediction.cost, tokens=1e12, days=41.234, usd=123_456.0)
    return Evaluated(family=(), plan=plan, prediction=replace(prediction, cost=cost))


@pytest.mark.parametrize(
    ("bounds", "is_met"),
    [
        (SearchBounds(), True),
        (SearchBounds(deadline_days=41.3), True),
        (SearchBounds(deadline_days=41.2), False),
        (SearchBounds(budget_usd=123_456.0), True),
        (SearchBounds(deadline_days=50.0, budget_usd=123_455.0), False),
        (SearchBounds(deadline_days=-1.0), False),
    ],
)
def test_a_run_meets_what_is_not_below_it(found, bounds, is_met):
    assert meets(found.prediction, bounds) is is_met


def test_a_run_without_a_price_meets_no_budget(found):
    unpriced = replace(found.prediction, cost=replace(found.prediction.cost, usd=None))
    assert not meets(unpriced, SearchBounds(budget_usd=1e12))


def test_the_nearest_figures_are_rounded_to_the_side_that_is_met(found):
    changes = list(looser_targets(found, SearchBounds(deadline_days=20.617, budget_usd=100_000.0)))
    assert [change.change for change in changes] == ["deadline_days=41.3 budget_usd=124000", "tokens=500.00B"]
    assert changes[1].days == pytest.approx(20.617)
    assert changes[1].usd == pytest.approx(61_728.0)


def test_no_shorter_run_meets_a_deadline_in_the_past(found):
    changes = list(looser_targets(found, SearchBounds(deadline_days=-3.0)))
    assert [change.change for change in changes] == ["deadline_days=41.3"]


def test_a_deadline_in_the_past_is_called_that_and_no_cluster_is_tried(found):
    missed = missed_targets(found.plan, SearchBounds(deadline_days=0.0), [found])
    assert missed.because == "a deadline of 0 days lies in the past"
    assert [change.change for change in missed.changes] == ["deadline_days=41.3"]


def test_what_is_missed_names_both_figures(found):
    missed = missed_targets(found.plan, SearchBounds(deadline_days=-2.0, budget_usd=1000.0), [found])
    assert missed.because == (
        "a deadline of -2 days lies in the past and the cheapest plan costs $123,456, more than $1,000"
    )


def test_a_run_without_a_length_cannot_be_compared_with_a_deadline(make_question):
    with pytest.raises(RecipeError) as refused:
        require_countable(make_question(), SearchBounds(deadline_days=30.0))
    assert (refused.value.code, refused.value.fix) == ("cost-tokens", "set tokens=1e12")


def test_the_nearest_number_of_nodes_is_looked_for_between_doublings(make_question):
    """A deadline that two nodes miss and four meet is met by three."""
    one = IntRange(low=1, high=1)
    bounds = SearchBounds(
        tp=one, cp=one, pp=one, offload=("none",), activation_offload=False, recompute=("full",), deadline_days=60.0
    )
    question = make_question(model="llama-3.1-8b", global_batch_size=384, tokens=1e12)
    fitting = find(question, bounds, is_brief=True).evaluation.fitting
    [nodes] = [
        change for change in missed_targets(question, bounds, fitting).changes if change.change.startswith("num_nodes=")
    ]
    assert nodes.change == "num_nodes=3"
    assert nodes.days < 60
    assert nodes.plan.cluster.num_nodes == 3


def test_more_nodes_have_the_batch_that_is_assumed_for_them(make_question):
    """The 32 sequences of 8 GPUs leave 64 of 96 GPUs idle, so that 12 nodes were proposed where fewer do."""
    bounds = SearchBounds(deadline_days=2.0)
    asked = make_question(model="llama-3.1-8b", seq_len=8192, global_batch_size=None, tokens=1e11)
    question = question_of(model=asked.model, cluster=asked.cluster, recipe=asked.recipe, engine=asked.engine)
    nearest = nearest_meeting(question, bounds)
    cluster = nearest.plan.cluster
    assumed = assumed_batch(model=asked.model, recipe=asked.recipe, num_gpus=cluster.num_gpus)
    assert nearest.plan.recipe.global_batch_size == assumed.num_sequences
    assert cluster.num_nodes <= 8
    kept = nearest_meeting(replace(question, open_fields=frozenset()), bounds)
    assert kept is None or kept.plan.recipe.global_batch_size == question.recipe.global_batch_size


def test_more_of_a_single_gpu_are_usual_servers(make_question):
    """One H100 misses the deadline; what meets it are GPUs of one server, no servers of one GPU."""
    question = make_question(model="llama-3.1-8b", cluster="h100-sxm", global_batch_size=384, tokens=1e11)
    bounds = SearchBounds(deadline_days=40.0, pp=IntRange(low=1, high=1))
    fitting = find(question, bounds, is_brief=True).evaluation.fitting
    [more] = [
        change for change in missed_targets(question, bounds, fitting).changes if change.change.startswith("num_gpus=")
    ]
    assert more.change == "num_gpus=3"
    assert (more.plan.cluster.num_nodes, more.plan.cluster.node.scale_up) == (1, "NVLink")
