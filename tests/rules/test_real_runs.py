"""Runs that really happened break no rule."""

from shardwise.rules import find_errors
from shardwise.validate.shipped_runs import measured_runs


def test_no_measured_run_that_a_plan_repeats_is_refused():
    runs = measured_runs().runs
    assert len(runs) > 300
    refused = {run.id: [item.rule for item in find_errors(run.plan)] for run in runs}
    assert {name: rules for name, rules in refused.items() if rules} == {}
