"""Every refusal comes with a neighbour that really keeps the rule."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardwise.rules import RULES, apply_changes, find_errors, find_refusals, is_valid
from strategies import plans

MANY = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@MANY
@given(plans())
def test_the_neighbour_of_a_refusal_does_not_break_the_same_rule(plan):
    for refusal in find_refusals(plan):
        assert refusal.neighbour, refusal
        neighbour = apply_changes(plan, refusal.neighbour)
        assert refusal.rule not in {other.rule for other in find_refusals(neighbour)}, refusal


@MANY
@given(plans())
def test_the_neighbour_of_a_refusal_breaks_no_rule_that_held_before(plan):
    before = {refusal.rule for refusal in find_errors(plan)}
    for refusal in find_refusals(plan):
        neighbour = apply_changes(plan, refusal.neighbour)
        after = {other.rule for other in find_errors(neighbour)}
        assert after <= before, (refusal, after - before)


@MANY
@given(plans())
def test_following_the_fixes_one_after_another_ends_at_a_valid_plan(plan):
    for _ in range(40):
        errors = find_errors(plan)
        if not errors:
            break
        plan = apply_changes(plan, errors[0].neighbour)
    assert is_valid(plan.model, plan.cluster, plan.recipe, plan.layout, plan.engine)
