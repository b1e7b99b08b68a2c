"""A person at a terminal sees that work goes on; a pipe sees nothing, and the answers are complete in both."""

import json
import os
import pty
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from launch.desk import LIMIT_S
from shardwise.cli.progress import step_bar

PLAN = {"model": "gpt2", "cluster": "h100-sxm", "recipe": {"seq_len": 512}}


@pytest.fixture
def plans_file(tmp_path):
    path = tmp_path / "plans.jsonl"
    path.write_text((json.dumps(PLAN) + "\n") * 50, encoding="utf-8")
    return path


def run_with_terminal_for_errors(words) -> tuple[str, str]:
    """Standard output through a pipe, and what a terminal on standard error was sent."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen([sys.executable, "-m", "shardwise", *words], stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    # A terminal that nobody reads takes a few kilobytes: the longer the bar moves, the more it is sent.
    with ThreadPoolExecutor(1) as reader:
        shown = reader.submit(_read_all, ours)
        printed = program.communicate(timeout=LIMIT_S)[0].decode()
        return printed, shown.result().decode()


def _read_all(descriptor: int) -> bytes:
    """What the terminal is sent until the program has closed it."""
    read = b""
    with suppress(OSError):
        while chunk := os.read(descriptor, 65536):
            read += chunk
    os.close(descriptor)
    return read


def test_the_bar_goes_to_the_terminal_and_the_answers_to_the_file(plans_file):
    printed, shown = run_with_terminal_for_errors(["predict", str(plans_file)])
    assert len([json.loads(line) for line in printed.splitlines()]) == 50
    assert "predicting" in shown


def test_a_search_says_that_it_is_searching(tmp_path):
    words = ["plan", "gpt2", "8xh100-sxm", "--seq-len", "512", "--global-batch-size", "64", "--json"]
    printed, shown = run_with_terminal_for_errors(words)
    assert json.loads(printed)["plans"]
    assert "searching layouts" in shown


def test_a_pipe_gets_no_bar(plans_file):
    done = subprocess.run(
        [sys.executable, "-m", "shardwise", "predict", str(plans_file)], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 50


@pytest.mark.parametrize("variable", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_takes_no_control_codes_gets_none(plans_file, variable, monkeypatch):
    for name, value in variable.items():
        monkeypatch.setenv(name, value)
    for words in (["predict", str(plans_file)], ["plan", "gpt2", "8xh100-sxm", "--seq-len", "512", "--json"]):
        assert run_with_terminal_for_errors(words)[1] == ""


@pytest.fixture
def shown_steps(monkeypatch):
    """What the bar says of some steps."""

    def show(*records):
        shown = []
        monkeypatch.setattr(
            "rich.progress.Progress.update", lambda _bar, _task, **told: shown.append(told["description"])
        )
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        monkeypatch.setattr("shardwise.cli.progress.takes_control_codes", lambda: True)
        with step_bar(total=len(records)) as on_step:
            for record in records:
                on_step(record)
        return shown

    return show


def test_a_step_of_training_shows_loss_speed_utilisation_memory_and_what_is_exposed(shown_steps):
    """60 GiB at the peak; the last two only when they are known."""
    step = {"step": 1, "loss": 2.5, "tokens_per_s_per_gpu": 8068.0, "mfu_fraction": 0.42}
    assert shown_steps(
        {**step, "peak_allocated_bytes": 60 * 2**30, "sample": {"exposed_communication_fraction": 0.031}},
        {**step, "mfu_fraction": None, "peak_allocated_bytes": 0},
    ) == [
        "loss 2.500  8,068 tokens/s/GPU  MFU 42.0%  60.00 GiB  exposed 3.1%",
        "loss 2.500  8,068 tokens/s/GPU  exposed 3.1%",
    ]


def test_a_step_of_fp16_shows_how_many_were_skipped_and_the_scale(shown_steps):
    step = {"step": 3, "loss": 2.5, "tokens_per_s_per_gpu": 8068.0, "loss_scale_ratio": 32768.0}
    (plain, skipped, infinite) = shown_steps(
        {**step, "num_skipped_steps": 0},
        {**step, "num_skipped_steps": 1},
        {**step, "num_skipped_steps": 2, "loss": None, "loss_scale_ratio": 16384.0},
    )
    assert plain == "loss 2.500  8,068 tokens/s/GPU"
    assert skipped == "loss 2.500  1 skipped, scale 32,768  8,068 tokens/s/GPU"
    assert infinite == "no finite loss  2 skipped, scale 16,384  8,068 tokens/s/GPU"
