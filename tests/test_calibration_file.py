"""Calibrations come back from their files as they were, and what is no calibration is refused."""

import json

import pytest

from calibrations import full
from shardwise.calibration_file import calibration_object, calibration_of, read_calibration
from shardwise.errors import CalibrationError


def document():
    return json.loads(json.dumps(calibration_object(full())))


def test_a_file_comes_back_as_it_was(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(document()), encoding="utf-8")
    found = read_calibration(path)
    assert calibration_object(found) == calibration_object(full())
    assert found.machine.versions == (("torch", "2.11.0"), ("nccl", "2.28.9"))


def test_two_files_of_one_content_are_one_calibration():
    one, other = calibration_of(document(), name="one"), calibration_of(document(), name="other")
    changed = calibration_of({**document(), "kernel_launch_s": 9e-6}, name="changed")
    assert one == other
    assert one != changed


def test_a_file_from_before_arrival_skew_was_timed_is_read_without_them():
    before = {name: value for name, value in document().items() if name != "meeting_s"}
    assert calibration_of(document(), name="now").meeting_s == 12e-6
    assert calibration_of(before, name="before").meeting_s is None


def test_updates_in_files_of_the_first_schema_are_laid_to_the_bytes_that_were_moved():
    first = calibration_of({**document(), "schema": "shardwise.calibration/1"}, name="first")
    assert [point.num_bytes for point in first.optimizer] == [858_993_459]
    assert [point.num_bytes for point in calibration_of(document(), name="now").optimizer] == [1_073_741_824]


def test_a_block_of_a_file_that_does_not_say_so_is_eager():
    blocks = [{key: value for key, value in row.items() if key != "is_compiled"} for row in document()["blocks"]]
    assert not calibration_of({**document(), "blocks": blocks}, name="before").has_compiled_blocks


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"products": [{"product_pass": "forward"}]}, "products\\[0\\] lacks dtype, duration_s, k, m, n"),
        ({"kernel_launch_s": float("nan")}, "kernel_launch_s is 'nan'"),
        ({"overlap_slowdown_ratio": "fast"}, "overlap_slowdown_ratio is 'fast'"),
        ({"machine": None}, "machine is not an object"),
        ({"moves": 3}, "moves is not a list"),
        ({"residuals": [{"name": "weather", "ratio": 1.0, "num_runs": 1}]}, "residuals\\[0\\].name is 'weather'"),
    ],
)
def test_what_is_broken_is_named(change, said):
    with pytest.raises(CalibrationError, match=said) as found:
        calibration_of({**document(), **change}, name="mine.json")
    assert found.value.code == "calibration-file"


def test_another_version_is_refused():
    with pytest.raises(CalibrationError, match=r"shardwise.calibration/9") as found:
        calibration_of({**document(), "schema": "shardwise.calibration/9"}, name="mine.json")
    assert found.value.code == "calibration-schema"


def test_a_file_that_is_no_json_is_refused(tmp_path):
    path = tmp_path / "calibration.json"
    path.write_text("half a fi", encoding="utf-8")
    with pytest.raises(CalibrationError, match="not JSON"):
        read_calibration(path)
    with pytest.raises(CalibrationError, match="cannot read"):
        read_calibration(tmp_path / "none.json")
