"""The words that start a job: torchrun's own on GPUs and on many nodes, torchrun with forked ranks on CPUs."""

import subprocess
import sys
from dataclasses import replace

import pytest

from shardwise.launch.command import command_text, job_environment, starting_words, torchrun_words
from shardwise.launch.surroundings import may_fork, uses_gpus
from train.models import GEMMA, LLAMA, make_job


def job_of(model, **fields):
    return replace(make_job(layout={"dp_shard": 2}, model=model), run_folder="/runs/a", **fields)


def test_torchrun_starts_every_rank_by_itself():
    words = ["--standalone", "--nproc-per-node=2", "-m", "shardwise.train.worker", "/runs/a/job.json"]
    patient = [sys.executable, "-m", "shardwise.train.patient_torchrun"]
    assert starting_words(job_of(LLAMA), forks=False) == [*patient, *words]
    plain = [sys.executable, "-m", "torch.distributed.run"]
    assert torchrun_words(job_of(LLAMA), num_nodes=1) == [*plain, *words]


@pytest.mark.parametrize(
    ("model", "fields", "imported"),
    [
        (LLAMA, {}, "shardwise.train.worker"),
        (GEMMA, {}, "shardwise.train.worker,transformers.models.auto.modeling_auto"),
        (
            LLAMA,
            {"implementation": "transformers"},
            "shardwise.train.worker,transformers.models.auto.modeling_auto",
        ),
    ],
    ids=["ours", "another family", "asked for"],
)
def test_ranks_are_forked_from_one_that_has_imported_what_the_model_needs(model, fields, imported):
    words = [sys.executable, "-m", "shardwise.train.forked_torchrun", imported, "2", "/runs/a/job.json"]
    assert starting_words(job_of(model, **fields), forks=True) == words


def test_every_node_starts_as_many_processes_as_it_has_gpus_where_one_lacks_some():
    assert "--nproc-per-node=gpu" in torchrun_words(job_of(LLAMA), num_nodes=2, is_uneven=True)
    assert "--nproc-per-node=1" in torchrun_words(job_of(LLAMA), num_nodes=2)


def test_the_script_for_many_nodes_gives_torchrun_its_own_words():
    last = command_text(job_of(LLAMA), num_nodes=2).partition('exec "$PYTHON"')[2]
    assert last.replace(" \\\n ", "").split() == [
        *("-m", "shardwise.train.scripted_torchrun", "--nnodes=2", "--rdzv-backend=c10d"),
        "--rdzv-endpoint=$HEAD_NODE:29500",
        *("--rdzv-id=$RUN_ID", "--nproc-per-node=1", "-m", "shardwise.train.worker", "/runs/a/job.json"),
    ]


@pytest.mark.parametrize(("given", "missing"), [({}, "HEAD_NODE"), ({"HEAD_NODE": "a"}, "RUN_ID")])
def test_the_script_for_many_nodes_names_what_is_not_set(given, missing):
    script = command_text(job_of(LLAMA), num_nodes=2).partition("exec ")[0]
    done = subprocess.run(["bash", "-c", script], env=given, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"{missing}: set it to" in done.stderr


def test_a_deterministic_run_has_an_environment_that_is_and_the_users_own_wins():
    wanted = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_NVLS_ENABLE": "0", "TORCHINDUCTOR_DETERMINISTIC": "1"}
    plain, asked = job_of(LLAMA), job_of(LLAMA, is_deterministic=True)
    assert not wanted.keys() & job_environment(plain, inherited={}).keys()
    assert wanted.items() <= job_environment(asked, inherited={}).items()
    assert "CUBLAS_WORKSPACE_CONFIG" not in job_environment(asked, inherited={"CUBLAS_WORKSPACE_CONFIG": ":16:8"})
    assert all(f"export {name}={value}\n" in command_text(asked, num_nodes=1) for name, value in wanted.items())


def test_devices_that_are_hidden_are_not_used(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert [uses_gpus(device) for device in ("auto", "cpu", "cuda")] == [False, False, True]


def test_ranks_are_forked_on_processors_of_linux_that_have_shared_memory(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("shardwise.launch.surroundings.SHARED_MEMORY", tmp_path)
    assert [may_fork(device) for device in ("cpu", "cuda")] == [True, False]
    monkeypatch.setattr("shardwise.launch.surroundings.SHARED_MEMORY", tmp_path / "none")
    assert not may_fork("cpu")
    monkeypatch.setattr("shardwise.launch.surroundings.SHARED_MEMORY", tmp_path)
    monkeypatch.setattr("sys.platform", "darwin")
    assert not may_fork("cpu")
