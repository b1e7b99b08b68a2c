"""``shardwise calibrate`` and ``--calibration``: refusals before long work, and what the answers say."""

import json

import pytest

from calibrations import full
from shardwise.calibration_file import calibration_object
from shardwise.cli.main import main

PREDICT = ["predict", "llama-3.1-8b", "8xh100-sxm", "--seq-len", "4096", "--dp-shard", "8", "--global-batch-size", "16"]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(calibration_object(full())), encoding="utf-8")
    return path


def test_an_existing_file_is_refused_before_anything_is_measured(file, capsys):
    assert main(["calibrate", "--out", str(file)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_too_short_a_time_is_refused(tmp_path, capsys):
    assert main(["calibrate", "--seconds", "3", "--out", str(tmp_path / "new.json")]) == 2
    assert "--seconds 20" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["predict", "plan", "timeline"])
def test_answers_that_use_a_calibration_say_so(command, file, capsys):
    assert main([command, *PREDICT[1:], "--calibration", str(file)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "calibrated on 2026-11-28, 8 x NVIDIA H100 80GB HBM3 (node-7)" in text


def test_json_names_the_calibration(file, capsys):
    main([*PREDICT, "--json"])
    plain = json.loads(capsys.readouterr().out)
    main([*PREDICT, "--json", "--calibration", str(file)])
    found = json.loads(capsys.readouterr().out)
    assert "calibration" not in plain
    assert found["calibration"]["date"] == "2026-11-28"
    assert found["calibration"]["machine"]["device"] == "NVIDIA H100 80GB HBM3"
    assert found["time"]["step_s"] != plain["time"]["step_s"]


def test_lines_of_plans_are_predicted_with_it(file, tmp_path, capsys):
    plan = {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "recipe": {"seq_len": 4096}, "layout": {"dp_shard": 8}}
    lines = tmp_path / "plans.jsonl"
    lines.write_text(json.dumps(plan) + "\n", encoding="utf-8")
    assert main(["predict", str(lines), "--calibration", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["calibration"]["date"] == "2026-11-28"


def test_a_file_that_is_none_is_refused(tmp_path, capsys):
    assert main([*PREDICT, "--calibration", str(tmp_path / "none.json")]) == 2
    assert "shardwise calibrate --out FILE" in capsys.readouterr().err
