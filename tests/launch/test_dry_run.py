"""A dry run looks at what ranks import and at the devices of the plan, and says that all is there only when it is."""

import json
import os
import subprocess
import sys

import pytest

from launch.desk import LIMIT_S
from shardwise.cli.main import main
from shardwise.launch import dry_run
from shardwise.launch.dry_run import Imported, imported

ALL_IS_THERE = "what the run reads is there"
H100 = "NVIDIA H100 80GB HBM3"
SMALL = ["--seq-len", "64", "--no-compile", "--dry-run", "--out", "run"]


@pytest.fixture
def dry(tmp_path, monkeypatch, capsys):
    """A dry run on a machine whose torch sees some GPUs; returns exit code and text."""
    monkeypatch.chdir(tmp_path)
    versions = {"torch": "2.13.0+cu130", "transformers": "5.24.0", "safetensors": "0.6.2", "triton": "3.8.0"}
    monkeypatch.setattr("shardwise.launch.surroundings._versions", lambda: versions)

    def run(*words, gpu_names=(), failures=(), gpu_failure=""):
        found = Imported(failures=tuple(failures), gpu_names=tuple(gpu_names), gpu_failure=gpu_failure)
        monkeypatch.setattr(dry_run, "imported", lambda packages: found)
        cluster, *options = words
        code = main(["train", "llama-3.2-1b", cluster, *SMALL, *options])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


def test_gpus_of_the_plan_that_are_there_are_there(dry):
    code, said = dry("2xh100-sxm", "--dp-shard", "2", "--global-batch-size", "2", gpu_names=[H100, H100])
    assert code == 0
    assert said.startswith(ALL_IS_THERE)
    assert "missing" not in said
    assert "not looked at: how much memory of the GPUs other processes hold" in said


@pytest.mark.parametrize(
    ("cluster", "gpu_names", "missing"),
    [
        ("2xh100-sxm", [], ["2 processes want a GPU each, and 0 can be seen", "would train on its CPUs"]),
        ("2xh100-sxm", [H100], ["2 processes want a GPU each, and 1 can be seen"]),
        (
            "2xh100-sxm",
            ["NVIDIA A100-SXM4-80GB"] * 2,
            ["is for H100 SXM5 80GB, and this machine has NVIDIA A100-SXM4-80GB"],
        ),
    ],
    ids=str,
)
def test_devices_that_are_not_there_are_said_and_the_script_is_written(dry, tmp_path, cluster, gpu_names, missing):
    code, said = dry(cluster, "--dp-shard", "2", "--global-batch-size", "2", gpu_names=gpu_names)
    assert code == 0
    assert ALL_IS_THERE not in said
    assert "run it where nothing is missing" in said
    for words in missing:
        assert any(words in line for line in said.splitlines() if line.startswith("missing here: ")), said
    assert (tmp_path / "run" / "run.sh").exists()


def test_a_device_that_was_asked_for_by_name_is_refused_as_the_run_would_be(dry, tmp_path):
    code, said = dry("2xh100-sxm", "--dp-shard", "2", "--global-batch-size", "2", "--device", "cuda", gpu_names=[H100])
    assert code == 2
    assert "2 processes want a GPU each, and 1 can be seen" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("device", ["auto", "cuda", "cpu"])
@pytest.mark.parametrize(
    "why",
    ["OSError: libcudart.so.13: cannot open shared object file", "ModuleNotFoundError: No module named 'torch'"],
    ids=["a library is missing", "files of an installed package are gone"],
)
def test_a_package_that_cannot_be_imported_is_refused_on_every_device(dry, tmp_path, device, why):
    code, said = dry("1xh100-sxm", "--device", device, gpu_names=[H100], failures=[("torch", why)])
    assert code == 2
    assert f"torch cannot be used here: {why}" in said
    assert not (tmp_path / "run").exists()


def test_gpus_that_torch_cannot_ask_are_of_no_matter_to_processors(dry):
    why = "RuntimeError: the driver is too old"
    code, said = dry("1xh100-sxm", gpu_failure=why)
    assert (code, f"missing here: torch cannot say which GPUs there are: {why}" in said) == (0, True)
    code, said = dry("1xh100-sxm", "--device", "cpu", "--out", "other", gpu_failure=why)
    assert (code, said.startswith(ALL_IS_THERE)) == (0, True)


@pytest.mark.parametrize("absent", ["torch", "safetensors"])
def test_a_package_that_is_not_installed_is_refused(dry, tmp_path, monkeypatch, absent):
    versions = {"torch": "2.13.0", "safetensors": "0.6.2"}
    del versions[absent]
    monkeypatch.setattr("shardwise.launch.surroundings._versions", lambda: versions)
    code, said = dry("1xh100-sxm", "--device", "cpu", failures=[(absent, f"ModuleNotFoundError: No module '{absent}'")])
    assert code == 2
    assert f"{absent} is not installed" in said
    assert "pip install 'shardwise[train]'" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "needs_transformers"),
    [
        ([], False),
        (["--implementation", "transformers"], True),
        (["--export", "exported"], True),
        (["--export", "exported", "--adapter", "lora", "--random-weights"], False),
    ],
    ids=str,
)
def test_transformers_is_looked_at_where_it_is_needed(dry, monkeypatch, words, needs_transformers):
    monkeypatch.setattr("shardwise.launch.surroundings._versions", lambda: {"torch": "2.13.0", "safetensors": "0.6.2"})
    monkeypatch.setattr("shardwise.launch.buildable._built", lambda job: None)
    code, said = dry("1xh100-sxm", "--device", "cpu", *words)
    assert code == (2 if needs_transformers else 0)
    assert ("transformers is not installed" in said) == needs_transformers


def test_of_many_nodes_nothing_is_said_to_be_there(dry):
    code, said = dry("2xdgx-h100", "--dp-shard", "16", "--global-batch-size", "16")
    assert code == 0
    assert ALL_IS_THERE not in said
    assert "not looked at: whether data, tokenizer, weights and checkpoints are there" in said
    assert "not looked at: whether the nodes have torch, what else ranks import, and the GPUs of the plan" in said


def test_what_is_missing_and_what_was_not_looked_at_are_fields(dry):
    code, said = dry("1xh100-sxm", "--json")
    answer = json.loads(said)
    assert code == 0
    assert answer["ok"]
    assert len(answer["missing_here"]) == 2
    assert answer["not_looked_at"] == []
    assert (answer["inputs"]["weights"], answer["inputs"]["tokens"]) == ("random", "synthetic")


def test_a_snapshot_of_an_allocator_that_processors_lack_is_refused_by_a_dry_run(dry):
    code, said = dry("1xh100-sxm", "--device", "cpu", "--memory-snapshot")
    assert code == 2
    assert "train-memory-snapshot" in said


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise ImportError('a library is missing')", "torch cannot be used here: ImportError: a library is missing"),
        ("import os; os._exit(9)", "torch and safetensors cannot be used here: it ends the process with exit code 9"),
    ],
)
def test_a_torch_that_is_installed_and_broken_is_found_by_importing_it(tmp_path, body, says):
    (tmp_path / "broken" / "torch").mkdir(parents=True)
    (tmp_path / "broken" / "torch" / "__init__.py").write_text(body + "\n", encoding="utf-8")
    path = os.pathsep.join((str(tmp_path / "broken"), os.environ.get("PYTHONPATH", ""), *sys.path))
    done = subprocess.run(
        [sys.executable, "-m", "shardwise", "train", "llama-3.2-1b", "1xh100-sxm", *SMALL, "--device", "cpu"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "run").exists()


def test_packages_of_this_environment_can_be_imported():
    found = imported(("torch", "safetensors"))
    assert found.failures == ()
    assert dict(imported(("torch", "no_such_package_at_all")).failures).keys() == {"no_such_package_at_all"}
