"""Every lab asks its question with plans that run, differ in one thing, and are predicted."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from shardwise.course.labs import LABS, LabSetting, find_lab
from shardwise.course.labs.run import finished, planned_trials, require_lab_folder
from shardwise.course.labs.settings import (
    CPU_MODELS,
    CPU_RECIPE,
    GPU_MODELS,
    GPU_RECIPE,
    LabRequest,
    lab_setting,
)
from shardwise.errors import PlanError
from shardwise.launch import surroundings

HERE = LabSetting(
    is_on_gpu=False,
    num_processes=2,
    is_default_size=True,
    num_cores=2,
    gpu="cpu",
    models=CPU_MODELS,
    recipe=CPU_RECIPE,
)
FOUR_GPUS = replace(HERE, is_on_gpu=True, num_processes=4, gpu="h100-sxm", models=GPU_MODELS, recipe=GPU_RECIPE)


def test_the_labs_are_those_of_the_course():
    names = [lab.name for lab in LABS]
    assert names == ["memory", "throughput", "checkpointing", "offload", "scaling", "prefetch", "communication"]


@pytest.mark.parametrize("setting", [HERE, FOUR_GPUS], ids=["processors", "GPUs"])
@pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)
def test_every_trial_is_a_plan_that_our_runtime_trains(lab, setting):
    trials = planned_trials(lab, setting, folder=Path("out"))
    assert len(trials) >= 3
    assert len({trial.folder for trial in trials}) == len(trials)
    for quantity in lab.quantities:
        assert quantity.title


def test_labs_share_the_runs_that_they_have_in_common():
    folders = [trial.folder for lab in LABS for trial in planned_trials(lab, FOUR_GPUS, folder=Path("out"))]
    assert (len(folders), len(set(folders))) == (28, 21)


def test_ddp_of_the_larger_model_does_not_fit_a_gpu_and_fsdp_does():
    trials = {trial.trial.name: trial for trial in planned_trials(find_lab("memory"), FOUR_GPUS, folder=Path("out"))}
    assert not trials["DDP, larger"].prediction.fits
    assert trials["FSDP, larger"].prediction.fits


@pytest.mark.parametrize(
    ("num_processes", "is_default", "sizes"),
    [(2, True, [1, 2, 4]), (4, True, [1, 2, 4]), (8, True, [1, 2, 4, 8]), (2, False, [1, 2]), (6, False, [1, 2, 4])],
)
def test_scaling_goes_in_powers_of_two(num_processes, is_default, sizes):
    trials = find_lab("scaling").trials(num_processes, is_default)
    assert [trial.num_processes for trial in trials] == sizes


@pytest.mark.parametrize(("num_gpus", "sizes"), [(0, [1, 2, 4]), (1, [1]), (2, [1, 2]), (4, [1, 2, 4])])
def test_scaling_starts_no_more_processes_than_there_are_gpus(monkeypatch, num_gpus, sizes):
    here_with(monkeypatch, num_gpus)
    setting = lab_setting(LabRequest(gpu="h200-sxm" if num_gpus else None))
    trials = planned_trials(find_lab("scaling"), setting, folder=Path("out"))
    assert [trial.plan.layout.world_size for trial in trials] == sizes


def test_a_run_that_was_stopped_is_made_again(tmp_path):
    """A run that is asked to stop finishes its step and measures those it made."""
    (found, *_) = planned_trials(find_lab("checkpointing"), HERE, folder=tmp_path)
    found.folder.mkdir(parents=True)
    path = found.folder / "measurement.json"
    path.write_text(json.dumps({"steps": [{}] * 2}), encoding="utf-8")
    assert finished(found, HERE) is None
    assert not path.exists()
    path.write_text(json.dumps({"steps": [{}] * HERE.num_steps}), encoding="utf-8")
    assert finished(found, HERE).measurement is not None


def test_the_model_and_the_batch_that_are_asked_for_are_run():
    setting = lab_setting(
        LabRequest(device="cpu", model="llama-3.2-1b", larger_model="llama-3.2-3b", recipe={"seq_len": 128})
    )
    trials = {trial.trial.name: trial for trial in planned_trials(find_lab("memory"), setting, folder=Path("out"))}
    assert "1B" in trials["FSDP, small"].plan.model.name.upper()
    assert "3B" in trials["FSDP, larger"].plan.model.name.upper()
    assert trials["FSDP, small"].plan.recipe.seq_len == 128


def here_with(monkeypatch, num_gpus):
    found = surroundings.Surroundings(num_gpus=num_gpus, num_cores=8)
    monkeypatch.setattr("shardwise.course.labs.settings.read_surroundings", lambda: found)


def test_a_machine_without_gpus_runs_labs_on_processors(monkeypatch):
    here_with(monkeypatch, 0)
    assert not lab_setting(LabRequest()).is_on_gpu
    with pytest.raises(PlanError, match="0 can be seen") as caught:
        lab_setting(LabRequest(device="cuda"))
    assert (caught.value.code, caught.value.fix) == ("lab-gpus", "add --device cpu")


def test_more_gpus_than_there_are_is_refused(monkeypatch):
    here_with(monkeypatch, 4)
    assert lab_setting(LabRequest(gpu="h100-sxm")).num_processes == 4
    with pytest.raises(PlanError) as caught:
        lab_setting(LabRequest(gpu="h100-sxm", num_processes=8))
    assert caught.value.fix == "add --processes 4"


def test_a_folder_with_something_in_it_is_only_gone_on_with_when_asked(tmp_path):
    (tmp_path / "run-1").mkdir()
    require_lab_folder(tmp_path, is_resumed=True)
    with pytest.raises(PlanError, match="not empty"):
        require_lab_folder(tmp_path, is_resumed=False)


def test_an_unknown_lab_is_answered_with_the_names():
    with pytest.raises(PlanError, match="memory, throughput"):
        find_lab("memroy")
