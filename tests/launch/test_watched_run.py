"""What a real run of two processes says about its time and memory besides losses, and what it leaves to go on from."""

import json
import os
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM

from launch.desk import LIMIT_S, lay_out, losses
from shardwise.cli.main import main
from shardwise.measure.profile import profile_traces
from shardwise.train.checkpoint.folder import find_checkpoint
from shardwise.train.checkpoint.origin import origin_of
from shardwise.train.job import read_job

pytestmark = pytest.mark.runs

STEPS = 6


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """The folder of a run that is saved at step 3 and exported; steps 3 and 5 were looked into for memory and time."""
    folder = lay_out(tmp_path_factory.mktemp("watched"))
    train(folder, "plan2.json", "--out", "run", "--profile-every", 5, "--tensorboard", "board", *SAVED)
    return folder


SAVED = ("--checkpoint-every", 3, "--export", "exported")


def train(folder, *words):
    common = ["--device", "cpu", "--data", "corpus.jsonl", "--steps", STEPS, "--json"]
    subprocess.run(
        [sys.executable, "-m", "shardwise", "train", *map(str, (*words, *common))],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "GLOO_SOCKET_IFNAME": "lo"},
        check=True,
        capture_output=True,
        timeout=LIMIT_S,
    )


def test_a_run_is_saved_exported_and_continued_on_another_number_of_processes(watched):
    model, report = AutoModelForCausalLM.from_pretrained(watched / "exported", output_loading_info=True)
    assert not report["missing_keys"]
    assert model.config.hidden_size == 32
    train(watched, "plan1.json", "--out", "part", "--resume", watched / "run" / "checkpoints" / "step-00000003")
    whole, part = losses(watched / "run"), losses(watched / "part")
    assert sorted(part) == [4, 5, 6]
    assert [part[step] for step in (4, 5, 6)] == pytest.approx([whole[step] for step in (4, 5, 6)], rel=1e-5)


def test_its_checkpoints_say_what_made_them(watched):
    origin = origin_of(find_checkpoint(watched / "run"))
    assert origin.job == read_job(watched / "run" / "job.json")
    assert (origin.data["seed"], origin.data["is_shuffled"]) == (0, True)


def measurement(watched):
    return json.loads((watched / "run" / "measurement.json").read_text(encoding="utf-8"))


def test_memory_is_named_by_component_and_phase(watched):
    memory = measurement(watched)["memory"]
    parts = memory["components_bytes"]
    assert sum(parts.values()) == memory["peak_allocated_bytes"]
    assert max(memory["phases_bytes"].values()) == memory["peak_allocated_bytes"]
    assert set(memory["phases_bytes"]) == {"forward", "loss", "backward", "optimizer"}
    num_params = 2 * (32 * 32 * 2 + 32 * 16 * 2 + 32 * 64 * 3 + 2 * 32) + 2 * 260 * 32 + 32
    assert parts["parameters"] == 4 * num_params / 2
    assert parts["optimizer"] == pytest.approx(2 * parts["parameters"], rel=0.01)
    assert parts["activations"] > 0
    assert "profiler" in memory["components_method"]


def test_a_sampled_step_says_where_its_time_went(watched):
    time = measurement(watched)["time"]
    (sample,) = time["samples"]
    assert sample["step"] == 5
    assert sum(sample["components_s"].values()) == pytest.approx(sample["step_s"])
    assert min(sample["components_s"][name] for name in ("forward", "backward", "optimizer")) > 0
    exchanged = {"all_gather", "reduce_scatter", "all_reduce", "all_to_all"}  # tokens travel to rows of the vocabulary
    assert {family["kind"] for family in sample["communication"]} == exchanged
    assert time["components_s"] == pytest.approx(sample["components_s"])


def test_steps_that_were_looked_into_are_not_in_the_median(watched):
    lines = [json.loads(line) for line in (watched / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["step"] for line in lines if line["is_sampled"]] == [3, 5]
    assert [line["step"] for line in lines if line["sample"]] == [5]
    assert measurement(watched)["time"]["num_steps_measured"] == 2


def test_the_traces_of_all_ranks_are_kept_and_can_be_profiled(watched):
    profile = profile_traces(sorted((watched / "run" / "traces").glob("*.json.gz")))
    assert [rank.rank for rank in profile.ranks] == [0, 1]


def test_the_run_ends_with_a_page_of_what_it_was(watched):
    page = (watched / "run" / "report.html").read_text(encoding="utf-8")
    assert "6 steps</h1>" in page
    for heading in ("Loss per token", "Tokens per second and GPU", "Memory over the step", "What the run was"):
        assert heading in page
    assert all(f">{phase}</text>" in page for phase in measurement(watched)["memory"]["phases_bytes"])
    assert "<td>profile_every</td><td>5</td>" in page
    assert "<script" not in page


def test_tensorboard_shows_every_step(watched):
    board = EventAccumulator(str(watched / "board")).Reload()
    assert [point.step for point in board.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]
    assert [point.step for point in board.Scalars("sampled/forward_s")] == [5]


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_record_is_asked_for_in_vain_where_its_package_is_not_installed(watched, monkeypatch, capsys, package):
    monkeypatch.setattr(f"shardwise.launch.surroundings.{package.upper()}", "no_such_package")
    words = ["train", str(watched / "plan2.json"), "--device", "cpu", f"--{package}", "letters"]
    assert main([*words, "--out", str(watched / "never")]) == 2
    said = capsys.readouterr().err
    assert f"error: --{package} needs no_such_package, which is not installed [train-{package}]" in said
    assert "fix: pip install no_such_package, or leave the option out" in said
    assert not (watched / "never").exists()
