"""What limits the fastest plan, and what more memory or the next GPU would change."""

from dataclasses import replace

import pytest

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.predict.memory import predict_memory
from shardwise.recipe import Recipe
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


@pytest.mark.parametrize(
    ("cluster", "engine", "asked", "change"),
    [
        ("16xh100-sxm", "torchtitan", {"seq_len": 8192, "global_batch_size": 128, "compile": False}, {"compile": True}),
        ("32xh100-sxm", "native", {"seq_len": 8192, "global_batch_size": 255}, {"global_batch_size": 256}),
    ],
)
def test_a_free_change_is_offered_as_the_changed_question_is_answered(cluster, engine, asked, change):
    question = {"model": read_model("llama-3.1-8b"), "cluster": read_cluster(cluster), "engine": engine}
    result = search(**question, recipe=Recipe(**asked))
    found = what_if(result, limits=SearchBounds()).changes[0]
    changed = search(**question, recipe=Recipe(**{**asked, **change})).plans[0]
    [(name, value)] = change.items()
    assert found.change == f"{name}={str(value).lower()}"
    assert (found.plan, found.step_s) == (changed.plan, changed.prediction.time.step_s)
    assert found.step_ratio == pytest.approx(found.step_s / result.plans[0].prediction.time.step_s)
    assert found.step_ratio < 0.97


def test_nothing_is_offered_where_nothing_is_gained(make_question):
    """Blocks are compiled already, and eight GPUs share 64 sequences."""
    question = make_question(model="llama-3.1-8b", cluster="8xh100-sxm", seq_len=4096, global_batch_size=64)
    result = search(model=question.model, cluster=question.cluster, recipe=question.recipe)
    found = what_if(result, limits=SearchBounds()).changes
    assert not [change for change in found if "=" in change.change]


def test_the_next_gpu_type_is_answered_as_the_changed_question():
    """Found around the recommended plan, 16 H200 were 4 % slower than what the command answers."""
    question = {"model": read_model("llama-3.1-8b"), "recipe": Recipe(seq_len=8192, global_batch_size=100)}
    found = what_if(search(**question, cluster=read_cluster("16xh100-sxm")), limits=SearchBounds()).changes[-1]
    answered = search(**question, cluster=read_cluster("16xh200-sxm")).plans[0]
    assert found.change == "h200-sxm instead of h100-sxm"
    assert (found.plan.layout, found.step_s) == (answered.plan.layout, answered.prediction.time.step_s)


@pytest.mark.runs
def test_more_memory_on_every_gpu_is_not_slower():
    """70B on 64 A100 of 40 and of 80 GB: the larger ones were recommended a slower plan, by a rule on ties."""
    recipe = Recipe(seq_len=4096, global_batch_size=128)
    small_s, large_s = (
        search(model=read_model("llama-3.1-70b"), cluster=read_cluster(cluster), recipe=recipe)
        .plans[0]
        .prediction.time.step_s
        for cluster in ("64xa100-sxm-40", "64xa100-sxm-80")
    )
    assert large_s < small_s
