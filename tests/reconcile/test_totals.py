"""A prediction beside logs and run folders: the rows that both state, with their signed error."""

import json
from pathlib import Path

import pytest

from shardwise.cli.main import main
from shardwise.errors import TraceError
from shardwise.plan_file import plan_to_json, read_plan
from shardwise.predict import predict
from shardwise.reconcile.measured import measured_totals
from shardwise.reconcile.totals import reconcile

LOGS = Path(__file__).parent.parent / "measure" / "data"
TITAN_PLAN = {
    "model": "llama-3.1-8b",
    "cluster": "8xh100-sxm",
    "recipe": {"seq_len": 8192, "global_batch_size": 8, "recompute": "selective"},
    "layout": {"dp_shard": 8},
    "engine": "torchtitan",
}


def test_a_rate_becomes_the_seconds_of_the_plans_step():
    """10,007 and 10,050 tokens a second and GPU, 8,192 tokens a GPU and step."""
    plan = read_plan(TITAN_PLAN)
    measured = measured_totals(LOGS / "torchtitan.log", plan)
    assert measured.step_s == pytest.approx((8192 / 10_050 + 8192 / 10_007) / 2)
    assert measured.notes == ()
    found = reconcile(plan, predict(plan), measured)
    assert [row.quantity for row in found.rows] == ["step time", "peak reserved"]
    step = found.rows[0]
    assert step.signed_error_fraction == pytest.approx(step.predicted_amount / measured.step_s - 1)
    assert found.step_time_ratio == pytest.approx(1 / (1 + step.signed_error_fraction))


def test_another_batch_than_the_plans_is_warned_of():
    plan = read_plan({**TITAN_PLAN, "recipe": {"seq_len": 4096, "global_batch_size": 16}})
    notes = " ".join(measured_totals(LOGS / "torchtitan.log", plan).notes)
    assert "seq_len=8192, the plan 4096" in notes
    assert "global_batch_size=8, the plan 16" in notes


@pytest.fixture
def run_folder(tmp_path):
    plan = read_plan(TITAN_PLAN)
    (tmp_path / "plan.json").write_text(json.dumps(plan_to_json(plan)), encoding="utf-8")
    measurement = {
        "schema": "shardwise.measurement/1",
        "memory": {
            "peak_allocated_bytes": 40 * 2**30,
            "peak_reserved_bytes": None,
            "components_bytes": {"parameters": 4_015_130_624, "unheard_of": 1},
        },
        "time": {"step_s": 1.5, "num_steps_measured": 9},
    }
    (tmp_path / "measurement.json").write_text(json.dumps(measurement), encoding="utf-8")
    return tmp_path


def test_our_own_runs_are_joined_component_by_component(run_folder, capsys):
    assert main(["reconcile", str(run_folder), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    rows = {row["quantity"]: row for row in answer["rows"]}
    assert set(rows) == {"step time", "peak allocated", "parameters"}
    assert rows["step time"]["measured"] == 1.5
    assert abs(rows["parameters"]["signed_error_fraction"]) < 0.01
    assert rows["parameters"]["is_in_band"] is None


def test_text_says_who_measured_and_how_long(run_folder, capsys):
    assert main(["reconcile", str(run_folder)]) == 0
    printed = capsys.readouterr().out
    assert "shardwise, 9 steps" in printed
    assert "times the predicted step" in printed


def test_a_run_that_did_not_end_says_what_to_name(tmp_path, run_folder):
    (run_folder / "measurement.json").unlink()
    with pytest.raises(TraceError) as refused:
        measured_totals(run_folder, read_plan(TITAN_PLAN))
    assert refused.value.code == "reconcile-no-measurement"


def test_a_log_without_a_plan_is_refused(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text((LOGS / "torchtitan.log").read_text(encoding="utf-8"), encoding="utf-8")
    assert main(["reconcile", str(log)]) == 2
    assert "--plan plan.json" in capsys.readouterr().err
