"""The file that holds one line a step."""

import json

from shardwise.train.metrics import METRICS_FILE, StepLog, StepRecord

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
