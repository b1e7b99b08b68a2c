"""The recommended plan stands beside the one that is explained, and which of the changes is advised."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from shardwise.explain import explain
from shardwise.explain.best_plan import best_plan
from shardwise.explain.records import Explanation
from shardwise.plan_file import read_plan
from shardwise.predict import predict

QUESTION = {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "recipe": {"seq_len": 8192, "global_batch_size": 64}}


def plan(**layout):
    return read_plan({**QUESTION, "layout": layout})


def test_the_recommended_plan_has_no_changes():
    found = explain(plan(tp=8))
    assert found.best is not None
    again = explain(found.best.plan)
    assert again.best is not None
    assert again.best.changes == ()
    assert not again.is_best_better


@pytest.mark.parametrize(
    ("fit", "best_fit", "step_ratio", "is_better"),
    [
        ("fits", "fits", 0.5, True),
        ("fits", "fits", 1.2, False),
        ("fits", "at the edge", 0.5, False),
        ("at the edge", "at the edge", 0.5, True),
        ("at the edge", "at the edge", 1.2, False),
        ("at the edge", "fits", 1.2, True),
        ("does not fit", "at the edge", 1.2, True),
    ],
)
def test_a_better_plan_fits_more_safely_or_as_safely_and_is_faster(fit, best_fit, step_ratio, is_better):
    """A slower plan at the edge was called the best one for a plan at the edge, and typed as the next command."""
    best = replace(explain(plan(tp=8)).best, fit=best_fit, step_ratio=step_ratio)
    explained = Explanation(plan=best.plan, prediction=SimpleNamespace(fit=fit), findings=(), changes=(), best=best)
    assert explained.is_best_better is is_better


def test_the_best_plan_does_not_depend_on_the_layout_that_is_explained():
    found = [best_plan(asked, predict(asked)) for asked in (plan(tp=8), plan(dp_shard=8), plan(pp=4, dp_shard=2))]
    assert len({(one.plan.layout, one.step_s, one.needed_bytes) for one in found}) == 1


def test_its_numbers_are_those_of_its_prediction():
    best = explain(plan(tp=8)).best
    again = predict(best.plan)
    assert (best.step_s, best.needed_bytes, best.fit) == (again.time.step_s, again.memory.needed_bytes, again.fit)


def test_there_is_none_where_nothing_fits():
    too_big = read_plan({**QUESTION, "model": "llama-3.1-405b", "cluster": "1xh100-sxm", "layout": {}})
    assert best_plan(too_big, predict(too_big)) is None


def test_one_change_is_advised_where_it_gains_as_much():
    found = explain(plan(tp=8))
    assert found.advised is found.best
    as_good = replace(found.changes[0], step_ratio=found.best.step_ratio)
    assert replace(found, changes=(as_good,)).advised is as_good
    assert replace(found, best=None).advised is found.changes[0]


@pytest.mark.parametrize("convention", ["seed"])
def test_the_textbook_convention_compares_no_plans(convention):
    asked = read_plan({**QUESTION, "recipe": {**QUESTION["recipe"], "convention": convention}, "layout": {"tp": 8}})
    assert best_plan(asked, predict(asked)) is None


def test_a_change_that_is_much_faster_than_the_first_is_told_too():
    """fp32 on A100: a larger micro-batch made it fit at 13.6 s a step, and mixed precision at 1.3 s."""
    asked = read_plan(
        {
            "model": "qwen2.5-1.5b",
            "cluster": "8xa100-sxm-80",
            "engine": "accelerate",
            "recipe": {"seq_len": 2048, "micro_batch_size": 4, "global_batch_size": 64, "precision": "fp32"},
            "layout": {"dp_replicate": 8, "zero_stage": 0},
        }
    )
    found = explain(asked)
    assert not found.fits_safely
    assert found.fastest_change is not None
    assert found.fastest_change.edit == "precision=bf16-mixed"
    assert found.fastest_change.step_s < found.first_change.step_s / 5
    assert replace(found, changes=(found.first_change,)).fastest_change is None


def test_a_field_that_follows_from_another_is_typed_where_the_recommended_plan_has_it_otherwise():
    """Parameters that a pipeline keeps gathered were to be gathered again in the plan without one, which keeps them."""
    best = explain(plan(pp=2, dp_shard=4)).best
    again = predict(best.plan)
    assert (best.step_s, best.needed_bytes) == (again.time.step_s, again.memory.needed_bytes)
