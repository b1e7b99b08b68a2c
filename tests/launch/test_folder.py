"""A refusal leaves no run folder in the way, and takes away nothing that is worth keeping."""

import pytest

from shardwise.errors import CheckpointError, ShardwiseError
from shardwise.launch.folder import METRICS_FILE, gone_when_refused
from shardwise.train.failure.diagnose import TrainingError


def refused(folder, *, error=CheckpointError, step=""):
    with pytest.raises(ShardwiseError):
        _begin(folder, error=error, step=step)


def _begin(folder, *, error, step):
    with gone_when_refused(folder):
        folder.mkdir(exist_ok=True)
        (folder / "job.json").write_text("{}", encoding="utf-8")
        (folder / METRICS_FILE).write_text(step, encoding="utf-8")
        raise error("no", code="some-code", fix="do something")


def test_a_folder_that_was_made_for_it_goes(tmp_path):
    refused(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_empty_folder_stays_empty(tmp_path):
    (tmp_path / "run").mkdir()
    refused(tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_what_another_run_left_there_stays(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old").write_text("", encoding="utf-8")
    refused(tmp_path / "run")
    assert (tmp_path / "run" / "old").exists()


def test_a_run_with_a_step_in_it_stays(tmp_path):
    refused(tmp_path / "run", step='{"step": 1}\n')
    assert (tmp_path / "run" / "job.json").exists()


def test_a_run_that_failed_stays_with_its_logs(tmp_path):
    refused(tmp_path / "run", error=TrainingError)
    assert (tmp_path / "run" / "job.json").exists()
