"""A number in a measurement or a calibration is one that somebody can have measured, or it is refused in a sentence."""

import json

import pytest

from calibrations import calibration, tables, timed_core
from shardwise.calibration import ProductPoint, TimedBytes
from shardwise.calibration_file import calibration_object, read_calibration
from shardwise.errors import CalibrationError, TraceError
from shardwise.reconcile.measured import read_measurement

WRONG = ("Infinity", "NaN", "1e400", "-1", "9" * 400, '"0.5"', "true", "[]", "{}")
MEASURED = '{"memory": {"peak_allocated_bytes": @}, "time": {"num_steps_measured": 5, "step_s": 0.5}}'


def measured(tmp_path, text):
    path = tmp_path / "measurement.json"
    path.write_text(text, encoding="utf-8")
    return read_measurement(path)


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("place", ["@", "0.5", "5"])
def test_no_number_of_a_measurement_is_another_thing(tmp_path, place, wrong):
    text = MEASURED.replace("@", "1024") if place != "@" else MEASURED
    text = text.replace(f": {place}", f": {wrong}")
    with pytest.raises(TraceError) as refused:
        measured(tmp_path, text)
    assert refused.value.code == "reconcile-no-measurement"
    assert len(refused.value.message) < 300


@pytest.mark.parametrize("part", ["memory", "time"])
@pytest.mark.parametrize("wrong", ["1", "[]", '"x"', "true"])
def test_a_part_of_a_measurement_is_an_object(tmp_path, part, wrong):
    document = {**json.loads(MEASURED.replace("@", "1024")), part: json.loads(wrong)}
    with pytest.raises(TraceError, match=part):
        measured(tmp_path, json.dumps(document))


def test_what_was_not_measured_is_null(tmp_path):
    assert measured(tmp_path, MEASURED.replace("@", "null")).peak_allocated_bytes is None


def numbers_in(tree, path=()):
    """The places of all numbers of a document."""
    if isinstance(tree, dict | list):
        keys = tree if isinstance(tree, dict) else range(len(tree))
        return [place for key in keys for place in numbers_in(tree[key], (*path, key))]
    return [path] if isinstance(tree, int | float) and not isinstance(tree, bool) else []


WHOLE = json.loads(
    json.dumps(
        calibration_object(
            calibration(
                products=(ProductPoint(product_pass="forward", dtype="bf16", m=64, n=32, k=16, duration_s=1e-5),),
                attention=(timed_core(forward_s=1e-3, backward_s=2e-3),),
                moves=(TimedBytes(num_bytes=1 << 20, duration_s=1e-6),),
                collectives=tables(bytes_per_s=1e11)[:1],
                kernel_launch_s=4e-6,
                overlap_slowdown_ratio=1.2,
                host_to_device_bytes_per_s=5e10,
            )
        )
    )
)
PLACES = numbers_in(WHOLE)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
@pytest.mark.parametrize("wrong", [0, -1, float("inf"), float("nan"), 10**400, "1", [], True])
def test_no_number_of_a_calibration_is_another_thing(tmp_path, place, wrong):
    document = json.loads(json.dumps(WHOLE))
    holder = document
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = wrong
    (tmp_path / "calibration.json").write_text(json.dumps(document), encoding="utf-8")
    if wrong == 0 and wrong is not True and place[-1] == "power_limit_w":
        assert read_calibration(tmp_path / "calibration.json").machine.power_limit_w == 0
        return
    with pytest.raises(CalibrationError) as refused:
        read_calibration(tmp_path / "calibration.json")
    assert str(place[-1]) in refused.value.message
