"""Several number formats are searched as one space."""

import pytest

from shardwise.errors import RecipeError
from shardwise.search.bounds import SearchBounds
from shardwise.search.one_pass import find

PRECISIONS = ("bf16-mixed", "fp8-mixed")


def test_the_space_of_two_precisions_is_both_spaces(make_question):
    question = make_question(global_batch_size=32)
    alone = [find(question, SearchBounds(precision=(name,), max_predictions=4)) for name in PRECISIONS]
    both = find(question, SearchBounds(precision=PRECISIONS, max_predictions=4))
    assert both.space.layouts_considered == sum(part.space.layouts_considered for part in alone)
    assert sum(group.count for group in both.rejected) == both.space.layouts_invalid + both.space.layouts_too_big
    found = {evaluated.plan.recipe.precision for evaluated in both.evaluation.fitting}
    assert found == set(PRECISIONS)


def test_eight_bits_are_faster_where_the_device_has_them_and_left_out_where_not(make_question):
    hopper = find(make_question(), SearchBounds(precision=PRECISIONS, max_predictions=4))
    fastest = min(hopper.evaluation.fitting, key=lambda found: found.prediction.time.step_s)
    assert fastest.plan.recipe.precision == "fp8-mixed"
    ampere = make_question(cluster="8xa100-sxm-80")
    found = find(ampere, SearchBounds(precision=PRECISIONS, max_predictions=4)).evaluation.fitting
    assert {evaluated.plan.recipe.precision for evaluated in found} == {"bf16-mixed"}


def test_a_precision_nobody_can_run_is_refused_with_its_rule(make_question):
    with pytest.raises(RecipeError) as refusal:
        find(make_question(cluster="8xa100-sxm-80"), SearchBounds(precision=("fp8-mixed",)))
    assert refusal.value.code == "recipe-fp8-hardware"
