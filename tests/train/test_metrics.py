"""The file that holds one line a step."""

import json
from dataclasses import replace
from types import SimpleNamespace

from shardwise.train.metrics import METRICS_FILE, StepLog, StepRecord, points_of
from shardwise.train.step_lines import StepLines

RECORD = StepRecord(
    step=3,
    loss=2.5,
    gradient_norm=1.0,
    learning_rate=0.1,
    num_tokens=8,
    step_s=1.0,
    data_wait_s=0.0,
    tokens_per_s=8.0,
    tokens_per_s_per_gpu=8.0,
    mfu_fraction=None,
    peak_allocated_bytes=0,
    peak_reserved_bytes=0,
)


def test_a_line_that_a_full_disk_cut_short_is_written_again(tmp_path):
    path = tmp_path / METRICS_FILE
    for held, steps in (('{"step": 1}\n{"step": 2}\n{"step": 3, "lo', [1, 2, 3]), ('{"ste', [3]), ("", [3])):
        path.write_text(held, encoding="utf-8")
        log = StepLog(tmp_path, is_writer=True, listeners=())
        log.add(RECORD)
        log.close()
        assert [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()] == steps


def test_every_recorder_gets_the_same_points():
    sampled = replace(RECORD, sample={"components_s": {"forward": 0.25}}, validation_loss=2.0)
    assert points_of(sampled) == {
        "train/loss": 2.5,
        "train/gradient_norm": 1.0,
        "train/learning_rate": 0.1,
        "train/num_skipped_steps": 0,
        "validation/loss": 2.0,
        "speed/step_s": 1.0,
        "speed/data_wait_s": 0.0,
        "speed/tokens_per_s": 8.0,
        "speed/tokens_per_s_per_gpu": 8.0,
        "memory/peak_allocated_bytes": 0,
        "memory/peak_reserved_bytes": 0,
        "sampled/forward_s": 0.25,
    }


def test_rank_0_of_a_run_that_nobody_follows_prints_what_a_bar_would_show(capsys, monkeypatch):
    clock = iter((0.0, 0.4, 1.2, 1.3, 1.4))
    monkeypatch.setattr("shardwise.train.step_lines.time", SimpleNamespace(monotonic=lambda: next(clock)))
    lines = StepLines(num_steps=5)
    for step in (1, 2, 3, 4, 5):
        lines.add(replace(RECORD, step=step, validation_loss=2.0 if step == 4 else None))
    assert capsys.readouterr().err.splitlines() == [
        "step 1/5  loss 2.500  8 tokens/s/GPU",
        "step 3/5  loss 2.500  8 tokens/s/GPU",
        "step 4/5  loss 2.500  8 tokens/s/GPU  validation 2.000",
        "step 5/5  loss 2.500  8 tokens/s/GPU",
    ]
