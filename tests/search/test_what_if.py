"""What limits the fastest plan, and what more memory or the next GPU would change."""

from dataclasses import replace

import pytest

from shardwise.predict.memory import predict_memory
from shardwise.search import IntRange, SearchBounds, search, what_if

ONE = IntRange(low=1, high=1)
BOUNDS = SearchBounds(cp=ONE, pp=ONE, activation_offload=False, offload=("none",))


@pytest.fixture(scope="module")
def answer(make_question):
    question = make_question(model="llama-3.1-8b", cluster="8xa100-sxm-40", seq_len=4096, global_batch_size=64)
    return search(model=question.model, cluster=question.cluster, recipe=question.recipe, bounds=BOUNDS)


def test_more_memory_and_the_next_gpu_are_tried(answer):
    found = what_if(answer, limits=BOUNDS)
    assert [change.change for change in found.changes] == [
        "8.00 GiB more on every GPU",
        "a100-sxm-80 instead of a100-sxm-40",
    ]


def test_more_memory_never_makes_the_fastest_plan_slower(answer):
    memory, part = what_if(answer, limits=BOUNDS).changes
    assert memory.step_ratio <= 1
    assert part.step_ratio < 1
    assert memory.plan.cluster.gpu.memory_bytes - answer.plans[0].plan.cluster.gpu.memory_bytes == 8 * 2**30


def test_memory_binds_exactly_where_more_of_it_helps(answer):
    found = what_if(answer, limits=BOUNDS)
    binds = found.changes[0].step_ratio < 0.99
    assert found.binding.startswith("Memory binds: with 8.00 GiB more" if binds else "Memory does not bind the")


def test_what_is_tried_fits_as_safely_and_moves_no_more_to_the_host(make_question):
    question = make_question(model="llama-3.1-8b", cluster="8xa100-sxm-40", seq_len=4096, global_batch_size=64)
    free = SearchBounds(cp=ONE, pp=ONE, tp=ONE)
    answer = search(model=question.model, cluster=question.cluster, recipe=question.recipe, bounds=free)
    best = answer.plans[0].plan.recipe
    assert (best.offload, best.activation_offload) == ("none", False)
    for change in what_if(answer, limits=free).changes:
        assert (change.plan.recipe.offload, change.plan.recipe.activation_offload) == ("none", False)
        assert not predict_memory(change.plan).is_borderline


def test_memory_binds_a_recommended_plan_that_recomputes_for_want_of_it(make_question):
    """8 GiB more on 40 are worth a few blocks less of recomputation."""
    question = make_question(model="llama-3.1-8b", cluster="8xa100-sxm-40", seq_len=8192, global_batch_size=64)
    bounds = SearchBounds(cp=ONE, pp=ONE, tp=ONE)
    answer = search(model=question.model, cluster=question.cluster, recipe=question.recipe, bounds=bounds)
    assert answer.plans[0].plan.recipe.recompute != "none"
    assert what_if(answer, limits=bounds).binding.startswith("Memory binds: with 8.00 GiB more")


def test_what_is_tried_stays_inside_the_bounds(answer):
    assert all(change.plan.layout.pp == change.plan.layout.cp == 1 for change in what_if(answer, limits=BOUNDS).changes)


def test_without_a_plan_there_is_nothing_to_ask(answer):
    assert what_if(replace(answer, plans=()), limits=BOUNDS) is None
