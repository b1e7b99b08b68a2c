"""The answer of ``plan --json``: whole where it is small, below 40 kB where it is not, and with --full always whole."""

import json
from dataclasses import replace

import pytest

from render.sample_answers import FOUND
from shardwise.render.json_answers import search_object
from shardwise.render.json_short import MAX_ANSWER_BYTES, answer_text


def many(num_plans, num_front):
    best, other = FOUND.plans
    plans = (best, *(replace(other, rank=rank) for rank in range(2, num_plans + 1)))
    return search_object(replace(FOUND, plans=plans, pareto=(other,) * num_front))


def test_a_small_answer_is_whole():
    document = many(2, 1)
    assert json.loads(answer_text(document, is_full=False)) == json.loads(answer_text(document, is_full=True))


@pytest.mark.parametrize(("num_plans", "num_front"), [(10, 7), (40, 30), (300, 2)])
def test_a_large_answer_stays_below_40_kb_and_says_what_is_missing(num_plans, num_front):
    document = many(num_plans, num_front)
    text = answer_text(document, is_full=False)
    written = json.loads(text)
    assert len(text.encode()) < MAX_ANSWER_BYTES
    assert "--full" in written["left_out"]["because"]
    for key, wanted in (("plans", num_plans), ("pareto", num_front)):
        assert len(written[key]) + written["left_out"].get(key, 0) == wanted
    assert written["recommended"]["plan"] == written["plans"][0]["plan"] == document["plans"][0]["plan"]
    assert [row["rank"] for row in written["plans"]] == list(range(1, len(written["plans"]) + 1))
    whole, short = document["plans"][-1]["prediction"], written["plans"][-1]["prediction"]
    assert short["fits"] == whole["fits"]
    assert short["time"] == {
        key: whole["time"][key] for key in ("step_s", "step_low_s", "step_high_s", "attention_kernel")
    }
    assert short["memory"]["needed_bytes"] == whole["memory"]["needed_bytes"]


def test_the_best_plan_keeps_its_whole_prediction_longest():
    document = many(10, 7)
    written = json.loads(answer_text(document, is_full=False))
    assert written["plans"][0]["prediction"] == json.loads(json.dumps(document["plans"][0]["prediction"]))
    assert "stages" not in written["plans"][1]["prediction"]["memory"]


def test_the_full_answer_leaves_nothing_out():
    document = many(40, 30)
    assert json.loads(answer_text(document, is_full=True)) == json.loads(json.dumps(document))
