"""Labs as their users run them: real processes, folders that are kept, runs that are shared."""

import json
import os
import subprocess
import sys

import pytest

from launch.test_train_command import CONFIG
from shardwise.cli.main import main


def lab(desk, *words, timeout_s=300):
    done = subprocess.run(
        [sys.executable, "-m", "shardwise", "lab", *map(str, words)],
        cwd=desk,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SMALL = ("--device", "cpu", "--model", "config.json", "--seq-len", 32, "--steps", 5, "--out", "runs")


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """Checkpointing as JSON, then offload in the same folder as text."""
    folder = tmp_path_factory.mktemp("labs")
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "checkpointing.json").write_text(lab(folder, "checkpointing", *SMALL, "--json"), encoding="utf-8")
    (folder / "offload.txt").write_text(
        lab(folder, "offload", *SMALL, "--resume", "--html", "o.html", "--svg", "o.svg"), encoding="utf-8"
    )
    return folder


def test_a_lab_measures_every_run_beside_its_prediction(desk):
    said = json.loads((desk / "checkpointing.json").read_text(encoding="utf-8"))
    assert (said["schema"], said["is_complete"]) == ("shardwise.lab/1", True)
    kept = {row[0]: row for row in said["tables"][0]["rows"]}
    assert list(kept) == ["FSDP, small", "selective", "full"]
    predicted, measured = ([row[place] for row in kept.values()] for place in (1, 2))
    assert measured == sorted(measured, reverse=True)
    # The gradient of the head counts as an activation in the plan and as a gradient where it is measured.
    assert measured[0] == pytest.approx(predicted[0], rel=0.2)
    # What a recomputed block makes on the way, and drops again, is a seventh of so small a model's activations.
    assert measured[1:] == pytest.approx(predicted[1:], rel=0.15)
    assert all(row[5] > 0 and row[6] > 0 for row in kept.values())


def test_runs_that_labs_have_in_common_are_made_once(desk):
    folders = sorted((desk / "runs").iterdir())
    assert len(folders) == 6
    assert all((folder / "measurement.json").exists() for folder in folders)


def test_the_text_has_table_picture_and_what_this_machine_cannot_show(desk):
    text = (desk / "offload.txt").read_text(encoding="utf-8")
    for words in ("Predicted beside measured", "parameters offloaded", "█", "Processors have no second memory"):
        assert words in text.replace("\n", " ")
    assert "<svg" in (desk / "o.html").read_text(encoding="utf-8")
    assert (desk / "o.svg").read_text(encoding="utf-8").startswith("<svg")


def test_a_lab_overwrites_nothing(desk, capsys, monkeypatch):
    monkeypatch.chdir(desk)
    assert main(["lab", "scaling", *map(str, SMALL)]) == 2
    assert "[lab-folder]" in capsys.readouterr().err


def test_without_a_name_the_labs_are_listed(capsys):
    assert main(["lab"]) == 0
    assert "scaling  1, 2 and 4 processes" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", ["memory", "throughput", "scaling", "prefetch", "communication"])
def test_the_other_labs_run_too(desk, name):
    said = json.loads(lab(desk, name, *SMALL, "--resume", "--json", timeout_s=600))
    assert said["is_complete"]
    assert all(run["measurement"] for run in said["runs"])
