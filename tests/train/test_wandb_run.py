"""A run of Weights & Biases: by the library where it is installed, and by what is called of it everywhere."""

import sys
from dataclasses import replace
from types import ModuleType

import pytest

from shardwise.train.job import WatchSpec
from shardwise.train.wandb_run import WandbRun
from train.models import make_job
from train.test_metrics import RECORD


def recorded(tmp_path):
    """A job in a folder, as it is recorded for a project."""
    job = replace(make_job(), run_folder=str(tmp_path / "tune"), watch=WatchSpec(wandb="letters"))
    job.folder.mkdir()
    return job


class Calls:
    """Stands for the module and for the run, and notes what is called."""

    def __init__(self):
        self.calls = []

    def init(self, **options):
        self.calls.append(("init", {name: options[name] for name in ("project", "name", "dir", "mode")}))
        return self

    def define_metric(self, name, **options):
        self.calls.append(("define_metric", name, options))

    def log(self, points):
        self.calls.append(("log", points))

    def finish(self):
        self.calls.append(("finish",))


@pytest.fixture
def calls(monkeypatch):
    """Fakes the library: it is one of the users, and not of ours."""
    fake, module = Calls(), ModuleType("wandb")
    module.init = fake.init
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return fake


def test_a_run_is_logged_over_its_own_steps_and_offline(tmp_path, calls, monkeypatch):
    job = recorded(tmp_path)
    run = WandbRun(job)
    run.add(RECORD)
    run.close()
    init, step, logged, finished = calls.calls
    assert init == ("init", {"project": "letters", "name": "tune", "dir": str(job.folder), "mode": "offline"})
    assert step == ("define_metric", "*", {"step_metric": "step"})
    assert (logged[1]["step"], logged[1]["train/loss"]) == (3, 2.5)
    assert finished == ("finish",)
    monkeypatch.setenv("WANDB_MODE", "online")
    WandbRun(job)
    assert calls.calls[4][1]["mode"] == "online"


def test_the_library_writes_a_run_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    job = recorded(tmp_path)
    run = WandbRun(job)
    run.add(RECORD)
    run.add(replace(RECORD, step=4, loss=2.25))
    assert dict(run.run.summary)["train/loss"] == 2.25
    run.close()
    assert wandb.run is None
    (written,) = job.folder.glob("wandb/offline-run-*/*.wandb")
    assert written.stat().st_size > 0
