"""Recorded memory explained: snapshots with their refused requests, and measurements beside a plan."""

import json

import pytest

from shardwise.cli.main import main
from shardwise.errors import TraceError
from shardwise.explain.recorded_memory import RecordedMemory, explain_recorded_memory, recorded_memory
from shardwise.measure.memory_snapshot import RefusedRequest
from shardwise.plan_file import read_plan
from shardwise.predict import predict

PLAN = {
    "model": "llama-3.1-8b",
    "cluster": "8xh100-sxm",
    "recipe": {"seq_len": 8192, "global_batch_size": 8},
    "layout": {"dp_shard": 8},
}
GIB = 2**30


def record(**parts):
    facts = {"source": "the snapshot", "peak_bytes": 40 * GIB, "phase": "backward", "components": ()}
    return RecordedMemory(**{**facts, **parts})


def claims(found):
    return " ".join(finding.claim for finding in found)


def test_the_peak_and_its_largest_component_are_named():
    found = explain_recorded_memory(record(components=(("activations", 30 * GIB), ("parameters", 10 * GIB))))
    assert "held 40.00 GiB at its peak in backward, 75.0% of it activations" in claims(found)


def test_a_refused_request_is_matched_with_the_plans_tensors():
    """Logits of 8,192 tokens and 128,256 words in fp32 are 4,202,692,608 bytes."""
    refused = RefusedRequest(event_index=7, num_bytes=8192 * 128_256 * 4, free_bytes=GIB)
    found = explain_recorded_memory(record(refused=(refused,)), plan=read_plan(PLAN))
    assert "A request of 3.91 GiB was refused with 1.00 GiB free" in claims(found)
    assert "logits" in claims(found)


def test_components_beyond_the_prediction_are_named_with_their_gap():
    plan = read_plan(PLAN)
    worst = predict(plan).memory.worst
    predicted = {entry.component: entry.num_bytes for entry in worst.components}
    held = (("activations", predicted["activations"] + 5 * GIB), ("parameters", predicted["parameters"]))
    found = explain_recorded_memory(record(components=held), plan=plan)
    gaps = {quantity.name: quantity.value for finding in found for quantity in finding.numbers}
    assert gaps["activations, beyond the prediction"] == 5 * GIB
    assert "parameters, beyond the prediction" not in gaps


def test_changes_are_scaled_by_what_was_recorded():
    """A record over the device's memory is relieved by a change, though the plan was predicted to fit."""
    plan = read_plan(PLAN)
    assert predict(plan).fits
    found = explain_recorded_memory(record(peak_bytes=85 * GIB), plan=plan)
    assert "change" in {finding.topic for finding in found}
    small = explain_recorded_memory(record(peak_bytes=10 * GIB), plan=plan)
    assert {finding.topic for finding in small} == {"memory", "headroom"}


def test_a_measurement_is_read_from_its_run_folder(tmp_path, capsys):
    memory = {"peak_allocated_bytes": 7 * GIB, "components_bytes": {"parameters": 3 * GIB, "optimizer": 4 * GIB}}
    (tmp_path / "measurement.json").write_text(json.dumps({"memory": memory}), encoding="utf-8")
    assert recorded_memory(tmp_path).components == (("optimizer", 4 * GIB), ("parameters", 3 * GIB))
    assert main(["explain", "--record", str(tmp_path)]) == 0
    assert "held 7.00 GiB" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("words", [["--record", "nope"], ["--record", "nope", "--oom", "CUDA out of memory"]])
def test_a_missing_record_and_a_second_text_are_refused(words, capsys):
    assert main(["explain", *words]) == 2
    assert "  fix: " in capsys.readouterr().err


def test_a_record_without_memory_is_refused(tmp_path):
    (tmp_path / "measurement.json").write_text('{"time": {"step_s": 1.0}}', encoding="utf-8")
    with pytest.raises(TraceError, match="states no peak of memory"):
        recorded_memory(tmp_path)
