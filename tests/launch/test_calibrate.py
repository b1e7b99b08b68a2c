"""Two real processes measure this machine; what is interrupted leaves nothing; what fails says why."""

import subprocess

import pytest

from shardwise.calibration_file import calibration_object, calibration_of
from shardwise.errors import CalibrationError
from shardwise.launch import calibrate as launcher
from shardwise.launch.calibrate import CalibrationRequest, calibrate

TINY = CalibrationRequest(device="cpu", num_processes=2, limit_s=8.0, command="shardwise calibrate", is_tiny=True)


def test_two_processes_fill_every_table(monkeypatch):
    monkeypatch.setattr(launcher, "OVERTIME_S", 900.0)  # of every table they time one case whatever the time
    seen = []
    found = calibrate(TINY, on_progress=lambda section, done: seen.append((section, done)))
    assert {point.product_pass for point in found.products} == {"forward", "dgrad", "wgrad"}
    assert {table.kind for table in found.collectives} <= {
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast")
    }
    assert found.blocks
    assert found.tables
    assert found.moves
    assert found.optimizer
    assert found.disk_write_bytes_per_s > 0
    assert 1.0 <= found.overlap_slowdown_ratio <= 3.0
    assert found.meeting_s is not None
    assert found.machine.device_kind == "cpu"
    assert found.machine.num_processes == 2
    assert dict(found.machine.versions)["torch"]
    assert seen[0] == ("starting", 0.0)
    assert [done for _, done in seen] == sorted(done for _, done in seen)
    assert calibration_of(calibration_object(found), name="again").products == found.products


def test_an_interruption_ends_the_processes(monkeypatch):
    started = []

    class Watched(subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            started.append(self)

    def interrupt(_section, _done):
        raise KeyboardInterrupt

    monkeypatch.setattr(launcher.subprocess, "Popen", Watched)
    with pytest.raises(KeyboardInterrupt):
        calibrate(TINY, on_progress=interrupt)
    assert [process.poll() for process in started] == [-9]


def test_processes_that_fail_say_why(monkeypatch):
    monkeypatch.setattr(launcher, "WORKER", "shardwise.no_such_worker")
    with pytest.raises(CalibrationError, match="no_such_worker") as found:
        calibrate(TINY, on_progress=lambda _section, _done: None)
    assert found.value.code == "calibration-failed"


def test_half_a_line_of_progress_is_none(tmp_path):
    path = tmp_path / launcher.PROGRESS_FILE
    for written, shown in (
        ('{"section": "products", "done', ("starting", 0.0)),
        ('{"section": "products", "done_fraction": 0.5}\n{"sec', ("products", 0.5)),
    ):
        path.write_text(written, encoding="utf-8")
        assert launcher._progress(tmp_path) == shown
