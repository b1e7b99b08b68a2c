"""Changed questions tried by searching them, also those whose change the pinned axes leave no layout for."""

import pytest

from shardwise.predict import predict
from shardwise.search import IntRange, SearchBounds, search
from shardwise.search.hypotheses import AT_THE_EDGE, Hypothesis, free_axes, tried
from shardwise.search.one_pass import find

ONE = IntRange(low=1, high=1)
EVERY_AXIS = SearchBounds(dp_shard=ONE, dp_replicate=ONE, tp=ONE, cp=ONE, pp=ONE, offload=("none",))


def test_a_change_under_which_the_pinned_axes_do_not_fill_the_cluster_has_no_plan(make_question):
    question = make_question(model="gpt2", cluster="2xh100-sxm", seq_len=1024, global_batch_size=8)
    assert tried(Hypothesis(change="", question=question, bounds=EVERY_AXIS)) is None
    (free,) = free_axes(question, EVERY_AXIS)
    assert tried(free).plan.layout.world_size == 2


def test_without_bounds_on_axes_there_are_none_to_free(make_question):
    question = make_question(model="gpt2", cluster="2xh100-sxm", seq_len=1024, global_batch_size=8)
    assert not list(free_axes(question, SearchBounds()))


def test_a_question_whose_axes_are_all_pinned_is_told_what_would_make_it_fit(make_question):
    """More nodes than the pinned axes fill are no way out, and no reason to refuse the question."""
    question = make_question(model="llama-3.1-8b", cluster="1xh100-sxm", seq_len=4096, global_batch_size=8)
    found = search(model=question.model, cluster=question.cluster, recipe=question.recipe, bounds=EVERY_AXIS)
    changes = {relief.change for relief in found.closest.reliefs}
    assert not any(change.startswith(("num_nodes=", "num_gpus=")) for change in changes)
    assert {"offload=optimizer", "gpu=b200-sxm"} <= changes


@pytest.mark.parametrize("bounds", [SearchBounds(), SearchBounds(recompute=("none",), offload=("none",))])
def test_what_is_proposed_fits_safely_or_says_that_it_may_not(make_question, bounds):
    question = make_question(model="llama-3.1-8b", cluster="4xh100-sxm", seq_len=8192, global_batch_size=64)
    relief = tried(Hypothesis(change="", question=question, bounds=bounds, caution="a caution"))
    is_borderline = predict(relief.plan).memory.is_borderline
    assert (AT_THE_EDGE in relief.caution) is is_borderline
    safe = [found for found in find(question, bounds, is_brief=True).evaluation.fitting if not edge(found)]
    assert is_borderline is not bool(safe)


def edge(found):
    return found.prediction.memory.is_borderline
