"""``shardwise.prediction/1`` is a contract: these keys, these units, and strict JSON."""

import json
from dataclasses import replace

import pytest

from render.sample_records import PLAN, PREDICTION, too_big
from shardwise.ledger import MEMORY_COMPONENTS
from shardwise.render.json_records import prediction_object
from shardwise.render.json_text import json_line, json_text
from shardwise.units import GIB

WRITTEN = json.loads(json_text(prediction_object(plan=PLAN, prediction=PREDICTION)))


def test_the_top_level_is_the_contract():
    expected = [
        "schema",
        "fits",
        "fit",
        "parameters",
        "memory",
        "time",
        "throughput",
        "cost",
        "warnings",
        "assumptions",
    ]
    assert list(WRITTEN) == expected
    assert WRITTEN["schema"] == "shardwise.prediction/1"


def test_memory_has_every_key_of_the_contract():
    needed = {
        "capacity_bytes",
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "device_used_bytes",
        "peak_phase",
        "components_bytes",
        "stages",
        "host_bytes",
        "nvme_bytes",
    }
    assert needed <= set(WRITTEN["memory"])


def test_components_are_the_nine_of_the_ledger_in_order():
    assert tuple(WRITTEN["memory"]["components_bytes"]) == MEMORY_COMPONENTS
    assert WRITTEN["memory"]["components_bytes"]["logits"] == 11 * GIB


def test_components_sum_to_what_the_device_shows():
    for stage in [WRITTEN["memory"], *WRITTEN["memory"]["stages"]]:
        assert sum(stage["components_bytes"].values()) == stage["device_used_bytes"]


def test_time_throughput_and_cost_have_the_keys_of_the_contract():
    assert {"step_s", "step_low_s", "step_high_s", "components_s", "communication"} <= set(WRITTEN["time"])
    assert WRITTEN["time"]["components_s"] == {
        "forward": 0.5,
        "backward": 1.125,
        "recompute": 0.0,
        "optimizer": 0.375,
        "exposed_communication": 0.0,
        "pipeline_bubble": 0.0,
        "offload": 0.0,
        "other": 0.0,
    }
    assert WRITTEN["time"]["communication"] == [
        {
            "name": "gather weights",
            "kind": "all_gather",
            "axis": "dp_shard",
            "group_size": 4,
            "bytes": 1_700_000_000,
            "count": 19,
            "total_s": 0.25,
            "exposed_s": 0.0625,
            "algorithm": "ring",
            "protocol": "Simple",
            "bottleneck": "NVLink",
            "basis": "measured",
        }
    ]
    assert {"gpu_hours", "usd", "days", "goodput_fraction"} <= set(WRITTEN["cost"])
    assert set(WRITTEN["throughput"]) == {
        "tokens_per_s",
        "tokens_per_s_per_gpu",
        "mfu_fraction",
        "hfu_fraction",
        "mfu_convention",
        "model_flop_per_step",
        "attention_fraction",
        "peak_flop_per_s",
    }


def test_parameters_are_exact_counts():
    """3 blocks of 11 x 7 and a table of 101 x 7, counted by hand."""
    assert WRITTEN["parameters"] == {"total": 938, "active": 938, "embedding": 707}


def test_a_plan_that_does_not_fit_says_so():
    assert prediction_object(plan=PLAN, prediction=too_big())["fits"] is False


def test_without_tokens_there_is_no_cost():
    assert "cost" not in prediction_object(plan=PLAN, prediction=replace(PREDICTION, cost=None))


@pytest.mark.parametrize("write", [json_text, json_line])
@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_is_never_written(write, number):
    with pytest.raises(ValueError, match="JSON compliant"):
        write({"step_s": number})


def test_a_jsonl_answer_is_one_line():
    assert "\n" not in json_line(prediction_object(plan=PLAN, prediction=PREDICTION))
