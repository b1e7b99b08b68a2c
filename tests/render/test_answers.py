"""Searches, explanations and accuracy reports: approved text, and JSON with the keys other programs rely on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from golden_files import assert_golden
from render.sample_answers import EXPLANATION, FOUND, NOT_FOUND, REPORT
from render.sample_records import CLUSTER, GPU, MODEL, PREDICTION
from shardwise.render.json_answers import (
    explanation_object,
    findings_object,
    run_cost_object,
    search_object,
    validation_object,
)
from shardwise.render.json_text import json_text
from shardwise.render.run_cost import RunCost
from shardwise.render.terminal import TextStyle
from shardwise.render.text_catalog import gpus_text, nodes_text
from shardwise.render.text_cost import run_cost_text
from shardwise.render.text_explanation import explanation_text, findings_text
from shardwise.render.text_search import search_text
from shardwise.render.text_validation import validation_text
from shardwise.units import GIB

GOLDEN = Path(__file__).parent / "golden"
COST = RunCost(model=MODEL, gpu=GPU, num_gpus=16, cost=PREDICTION.cost, fit="does not fit")
TEXTS = {
    "search_found": lambda style: search_text(FOUND, style=style),
    "search_nothing_fits": lambda style: search_text(NOT_FOUND, style=style),
    "explanation": lambda style: explanation_text(EXPLANATION, style=style),
    "findings": lambda style: findings_text(EXPLANATION.findings, style=style),
    "validation": lambda style: validation_text(REPORT, has_rows=True, has_unused=True, style=style),
    "cost": lambda style: run_cost_text(COST, style=style),
    "gpus": lambda style: gpus_text([GPU], style=style),
    "nodes": lambda style: nodes_text([CLUSTER.node], style=style),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_is_as_approved(name):
    assert_golden(GOLDEN / f"{name}.txt", TEXTS[name](TextStyle()))


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", TEXTS)
def test_no_line_is_wider_than_the_medium(name, width):
    assert max(len(line) for line in TEXTS[name](TextStyle(width=width)).splitlines()) <= width


def test_what_is_typed_next_is_the_change_that_the_screen_names_or_none():
    """gpu=b200-sxm, which fits, was to be changed first, and offloading, which does not fit, was to be typed."""
    change, command = EXPLANATION.changes[0], "shardwise explain tiny-7 16xg100"
    offloaded = replace(change, changes=(("activation_offload", True),), fit="does not fit")
    bought = replace(change, changes=(("gpu", "b200-sxm"),), fit="fits")
    text = explanation_text(replace(EXPLANATION, changes=(offloaded, bought)), command=command)
    assert "First remedy: gpu=b200-sxm: " in text
    assert text.endswith("\nNext: shardwise plan tiny-7 16xg100\n")
    assert "--activation-offload" not in text


def written(value) -> dict:
    return json.loads(json_text(value))


def test_a_search_is_the_contract():
    answer = written(search_object(FOUND))
    assert answer["schema"] == "shardwise.search/1"
    assert answer["space"]["layouts_considered"] == 97
    assert answer["space"]["layouts_feasible"] == 15
    assert answer["space"]["wall_s"] is None
    assert written(search_object(FOUND, has_clock=True))["space"]["wall_s"] == 0.125
    assert [ranked["rank"] for ranked in answer["plans"]] == [1, 2]
    assert answer["plans"][0]["plan"]["schema"] == "shardwise.plan/1"
    assert answer["plans"][0]["prediction"]["schema"] == "shardwise.prediction/1"
    assert answer["plans"][1]["differences_s"] == {"exposed_communication": 0.5}
    assert answer["rejected"] == [
        {"rule": "layout-heads-over-tp", "count": 53, "example": "tp=3 with 7 heads", "fix": "set tp=1"}
    ]
    assert "closest" not in answer


def test_a_search_that_finds_nothing_says_what_came_closest():
    closest = written(search_object(NOT_FOUND))["closest"]
    assert closest["missing_bytes"] == 8 * GIB
    assert closest["reliefs"][0]["change"] == "num_nodes=4"
    assert closest["prediction"]["fits"] is False


def test_an_explanation_has_findings_and_changes():
    answer = written(explanation_object(EXPLANATION))
    assert [finding["topic"] for finding in answer["findings"]] == ["verdict", "memory"]
    assert answer["findings"][1]["numbers"][0] == {"name": "activations", "value": 24 * GIB, "unit": "bytes"}
    assert answer["changes"][0]["saved_bytes"] == 26 * GIB
    assert written(findings_object(EXPLANATION.findings))["findings"] == answer["findings"]


def test_an_accuracy_report_has_every_row_and_every_count():
    answer = written(validation_object(REPORT))
    assert answer["fits"]["num_rows"] == 21
    assert answer["fits"]["correct_fraction"] == pytest.approx(16 / 21)
    assert answer["rows"][0]["measured_low_bytes"] == 59 * GIB
    assert answer["unused"] == [{"id": "ACME-2", "family": "ACME", "reason": "sequence length not printed"}]


def test_a_cost_says_what_was_priced():
    answer = written(run_cost_object(COST))
    assert (answer["model"], answer["gpu"], answer["num_gpus"], answer["fits"]) == ("tiny-7", "g100", 16, False)
