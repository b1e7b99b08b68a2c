"""What a run that a signal stopped says it leaves behind: only checkpoints that are there, asked for or not."""

import signal
import socket
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from shardwise.launch import run
from shardwise.launch.run import run_job
from shardwise.train.checkpoint.folder import CheckpointFolder
from shardwise.train.failure.diagnose import TrainingError
from shardwise.train.failure.record import RankRecord
from shardwise.train.failure.stopped import StoppedError, stopped_error
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


ENDS_WELL = """
from pathlib import Path
folder = Path({folder!r})
(folder / "metrics.jsonl").write_text("".join(f'{{{{"step": {{n}}}}}}\\n' for n in range(1, {last} + 1)))
(folder / "measurement.json").write_text({measured!r})
"""


@pytest.fixture
def processes_that_end_well_after(tmp_path, monkeypatch):
    """Makes every run a process that says so many steps were done, and returns the job."""

    def make(last, measured="{}"):
        program = ENDS_WELL.format(folder=str(tmp_path), last=last, measured=measured)
        monkeypatch.setattr(run, "starting_words", lambda job, forks: [sys.executable, "-c", program])
        return replace(make_job(num_steps=4), run_folder=str(tmp_path))

    return make


def test_a_run_whose_ranks_heard_a_signal_alone_is_no_success(processes_that_end_well_after):
    job, steps = processes_that_end_well_after(3), []
    with pytest.raises(StoppedError, match="the run was stopped by SIGTERM") as caught:
        run_job(job, on_step=lambda record: steps.append(record["step"]))
    assert (steps, caught.value.exit_code) == ([1, 2, 3], 143)


def test_a_run_that_its_validations_ended_early_is_one(processes_that_end_well_after):
    job = processes_that_end_well_after(3, measured='{"validation": {"ended_early": true}}')
    assert run_job(job, on_step=lambda record: None) == {"validation": {"ended_early": True}}


def test_a_run_that_did_all_of_its_steps_is_one(processes_that_end_well_after):
    assert run_job(processes_that_end_well_after(4), on_step=lambda record: None) == {}


@pytest.mark.parametrize("cut", ['{"step": 7, "lo', '{"step": 7}', '{"step"'])
def test_a_line_that_was_cut_short_is_no_part_of_the_one_that_takes_its_place(tmp_path, monkeypatch, cut):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 6}\n' + cut, encoding="utf-8")
    rewritten = ['{"step": 6}\n', '{"step": 6}\n{"step": 7, "loss": 1', '{"step": 6}\n{"step": 7, "loss": 1.5}\n']

    def sleep(_seconds):
        metrics.write_text(rewritten.pop(0), encoding="utf-8")

    monkeypatch.setattr(run, "time", SimpleNamespace(sleep=sleep))
    ending = SimpleNamespace(has_ended=lambda: not rewritten, look=lambda: None)
    assert list(run._records(metrics, ending, None)) == [{"step": 7, "loss": 1.5}]


def test_a_run_that_failed_names_the_checkpoint_that_it_can_go_on_from(tmp_path):
    (CheckpointFolder(tmp_path).begin(3) / ".metadata").write_bytes(b"made up")
    saved = CheckpointFolder(tmp_path).publish(3)
    job = replace(make_job(), checkpoint=CheckpointSpec(folder=str(tmp_path)))
    error = run._with_what_was_saved(TrainingError("rank 1 died", code="train-rank-died", fix="resume the run"), job)
    assert error.message == f"rank 1 died; the newest checkpoint is {saved.path}"


def test_a_stopped_run_is_ended_soon_only_when_all_its_ranks_have(tmp_path, monkeypatch):
    """Ranks that begin after the signal are given the time to stop."""
    clock, killed, ranks = [100.0], [], []
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(run, "ranks_of", lambda folder: tuple(ranks))
    monkeypatch.setattr(run, "is_alive", lambda pid: True)
    monkeypatch.setattr(run.os, "kill", lambda pid, number: None)
    ending = run.Ending(tmp_path, process=SimpleNamespace(poll=lambda: None))
    monkeypatch.setattr(ending, "kill", lambda: killed.append(clock[0]))
    ranks.append(RankRecord(rank=0, pid=1, host=socket.gethostname()))
    ending.hear(signal.SIGTERM, None)
    for now_s, records in (
        (101.0, []),
        (110.0, [RankRecord(rank=0, pid=1, host="here", has_ended=True)]),
        (112.0, [RankRecord(rank=0, pid=1, host="here", has_ended=True), RankRecord(rank=1, pid=2, host="here")]),
        (120.0, [RankRecord(rank=number, pid=1, host="here", has_ended=True) for number in range(2)]),
        (124.0, [RankRecord(rank=number, pid=1, host="here", has_ended=True) for number in range(2)]),
    ):
        clock[0], ranks[:] = now_s, records
        ending.look()
    assert killed == []
    clock[0] = 125.5
    ending.look()
    assert killed == [125.5]


def test_a_rank_that_ends_as_the_signal_is_passed_on_disturbs_nobody(tmp_path, monkeypatch):
    asked = []

    def kill(pid, number):
        asked.append(pid)
        raise ProcessLookupError

    monkeypatch.setattr(run, "is_alive", lambda pid: True)
    monkeypatch.setattr(run.os, "kill", kill)
    ranks = tuple(RankRecord(rank=number, pid=number, host=socket.gethostname()) for number in (1, 2))
    monkeypatch.setattr(run, "ranks_of", lambda folder: ranks)
    ending = run.Ending(tmp_path, process=SimpleNamespace(poll=lambda: None))
    ending.hear(signal.SIGTERM, None)
    assert (asked, ending.number) == ([1, 2], signal.SIGTERM)
