"""Changed questions tried by searching them, also those whose change the pinned axes leave no layout for."""

import pytest

from shardwise.search import IntRange, SearchBounds, search
from shardwise.search.hypotheses import AT_THE_EDGE, Hypothesis, free_axes, has_plan, mended_rules, relief_of
from shardwise.search.records import Rejection

ONE = IntRange(low=1, high=1)
EVERY_AXIS = SearchBounds(dp_shard=ONE, dp_replicate=ONE, tp=ONE, cp=ONE, pp=ONE, offload=("none",))


def test_a_change_under_which_the_pinned_axes_do_not_fill_the_cluster_has_no_plan(make_question):
    question = make_question(model="gpt2", cluster="2xh100-sxm", seq_len=1024, global_batch_size=8)
    assert not has_plan(Hypothesis(change="", question=question, bounds=EVERY_AXIS))
    assert relief_of(Hypothesis(change="", question=question, bounds=EVERY_AXIS), objective="step_time") is None
    *_, free = free_axes(question, EVERY_AXIS)
    assert relief_of(free, objective="step_time").plan.layout.world_size == 2


def test_one_bound_is_freed_before_all_of_them(make_question):
    question = make_question(model="gpt2", cluster="2xh100-sxm", seq_len=1024, global_batch_size=8)
    bounds = SearchBounds(tp=ONE, zero_stage=(3,), deadline_days=5.0)
    freed = list(free_axes(question, bounds))
    assert [hypothesis.change for hypothesis in freed] == [
        "no bound on tp",
        "no bound on zero_stage",
        "no bounds on the axes",
    ]
    assert freed[0].bounds == SearchBounds(zero_stage=(3,), deadline_days=5.0)
    assert freed[2].bounds == SearchBounds(deadline_days=5.0)


def test_without_bounds_on_axes_there_are_none_to_free(make_question):
    question = make_question(model="gpt2", cluster="2xh100-sxm", seq_len=1024, global_batch_size=8)
    assert not list(free_axes(question, SearchBounds(deadline_days=5.0)))


def rejection(*changes):
    return Rejection(rule="a rule", count=1, example="", fix="", changes=changes)


def test_a_fix_of_a_rule_that_changes_the_question_is_tried_and_others_are_not(make_question):
    rejected = [rejection(("compile", False)), rejection(("tp", 4)), rejection(("recompute", "full"), ("pp", 1))]
    rejected += [
        rejection(("recompute_modules", None)),
        rejection(("recompute", "full")),
        rejection(("optimizer", "adamw"), ("compile", False)),
        rejection(),
    ]
    question = make_question(compile=True, optimizer="lion")
    found = list(mended_rules(question, SearchBounds(tp=ONE), rejected))
    assert [hypothesis.change for hypothesis in found] == [
        "compile=false",
        "optimizer=adamw compile=false",
    ]
    assert not found[0].question.recipe.compile
    assert found[0].question.recipe.optimizer == "lion"
    assert found[0].bounds == SearchBounds(tp=ONE)
    assert not list(mended_rules(question, SearchBounds(), rejected[1:2]))
    apart = [rejection(("compile", False)), rejection(("optimizer", "adamw"))]
    *_, both = mended_rules(question, SearchBounds(), apart)
    assert both.change == "compile=false optimizer=adamw"


def test_a_question_whose_axes_are_all_pinned_is_told_what_would_make_it_fit(make_question):
    """More nodes than the pinned axes fill are no way out, and no reason to refuse the question.

    An H200 holds the states of 8B and a sequence of 4,096 tokens: 120.7 GiB were measured with blocks recomputed.
    """
    question = make_question(model="llama-3.1-8b", cluster="1xh100-sxm", seq_len=4096, global_batch_size=8)
    found = search(model=question.model, cluster=question.cluster, recipe=question.recipe, bounds=EVERY_AXIS)
    changes = {relief.change for relief in found.closest.reliefs}
    assert not any(change.startswith(("num_nodes=", "num_gpus=")) for change in changes)
    assert {"offload=optimizer", "gpu=h200-sxm"} <= changes


@pytest.mark.parametrize(
    ("model", "asked", "bounds"),
    [
        ("llama-3.1-8b", {"cluster": "4xh100-sxm", "seq_len": 8192}, SearchBounds()),
        ("llama-3.1-8b", {"cluster": "4xh100-sxm"}, SearchBounds(recompute=("none",), offload=("none",))),
        ("qwen3-14b", {"cluster": "2xl40s", "seq_len": 8192, "global_batch_size": 4}, SearchBounds()),
    ],
)
def test_what_is_proposed_is_what_the_changed_question_recommends(make_question, model, asked, bounds):
    """The third is recommended for what fits safely, and not for being the fastest."""
    question = make_question(model=model, **asked)
    relief = relief_of(
        Hypothesis(change="", question=question, bounds=bounds, caution="a caution"), objective="step_time"
    )
    followed = search(model=question.model, cluster=question.cluster, recipe=question.recipe, bounds=bounds)
    first = followed.plans[0]
    assert relief.plan == first.plan
    assert relief.step_s == first.prediction.time.step_s
    assert relief.needed_bytes == first.prediction.memory.needed_bytes
    assert (AT_THE_EDGE in relief.caution) is first.prediction.memory.is_borderline
