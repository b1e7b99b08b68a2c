"""What a run that a signal stopped says it leaves behind: only checkpoints that are there, asked for or not."""

import signal
from dataclasses import replace

import pytest

from shardwise.launch.run import stopped_error
from shardwise.train.checkpoint.folder import CheckpointFolder
from shardwise.train.job import CheckpointSpec
from train.models import make_job


@pytest.mark.parametrize(
    ("spec", "says", "fix"),
    [
        ({}, "no checkpoint was asked for", "save states with --checkpoint-every"),
        (
            {"folder": "states", "every_steps": 100},
            "no checkpoint was saved yet",
            "start again; once it trains, one Ctrl-C lets it save",
        ),
        ({"folder": "states"}, "no checkpoint was asked for", "save states with --checkpoint-every"),  # --export
        (
            {"folder": "states", "every_steps": 100, "resume_from": "old"},
            "it saved no checkpoint of its own",
            "start again with --resume old",
        ),
    ],
    ids=["none asked for", "none yet", "only at the end", "resumed"],
)
def test_a_run_that_saved_nothing_says_why(tmp_path, monkeypatch, spec, says, fix):
    monkeypatch.chdir(tmp_path)
    error = stopped_error(replace(make_job(), checkpoint=CheckpointSpec(**spec)), signal.SIGINT)
    assert (error.message, error.fix) == (f"the run was stopped by SIGINT; {says}", fix)
    assert (error.code, error.exit_code) == ("train-stopped", 130)


def test_a_run_that_saved_names_its_newest_checkpoint(tmp_path):
    for step in (3, 6):
        states = CheckpointFolder(tmp_path)
        (states.begin(step) / ".metadata").write_bytes(b"made up")
        states.publish(step)
    spec = CheckpointSpec(folder=str(tmp_path), every_steps=3)
    error = stopped_error(replace(make_job(), checkpoint=spec), signal.SIGTERM)
    assert error.message == f"the run was stopped by SIGTERM; its newest checkpoint is {tmp_path / 'step-00000006'}"
    assert error.fix == f"go on with --resume {tmp_path}"
