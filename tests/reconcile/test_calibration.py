"""What runs teach: made-up machines are found again, few runs move little, outliers decide nothing."""

import json
from dataclasses import replace

import pytest

from calibrations import H100, calibration
from shardwise.calibration import Residual
from shardwise.calibration_file import read_calibration
from shardwise.cli.main import main
from shardwise.plan_file import plan_to_json, read_plan
from shardwise.reconcile.calibration import learn
from shardwise.reconcile.measured import MeasuredTotals
from shardwise.reconcile.records import predicted_by, run_record, with_factors

LAYOUTS = (
    {"dp_shard": 8},
    {"dp_shard": 4, "tp": 2},
    {"dp_shard": 8, "zero_stage": 2},
    {"tp": 8},
    {"dp_shard": 2, "tp": 4},
)
BLANK = calibration()


def plan_of(layout, seq_len=4096):
    recipe = {"seq_len": seq_len, "global_batch_size": 16, "recompute": "full", "precision": "bf16-mixed"}
    return read_plan({"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "recipe": recipe, "layout": layout})


def run_of(plan, truth, *, name="run", ratio=1.0, base=BLANK):
    """A run that a machine with the factors of ``truth`` would make, off by a ratio."""
    found = predicted_by(plan, with_factors(BLANK, {residual.name: residual for residual in truth}))
    worst = found.memory.worst
    measured = MeasuredTotals(
        trainer="shardwise",
        num_steps=9,
        step_s=ratio * found.time.step_s,
        peak_allocated_bytes=worst.peak_allocated_bytes,
        peak_reserved_bytes=worst.peak_reserved_bytes,
        device_used_bytes=worst.device_used_bytes,
    )
    return run_record(name, plan, measured, base)


def factors(*pairs):
    return tuple(Residual(name=name, ratio=ratio, num_runs=1) for name, ratio in pairs)


def learned_ratio(found, name):
    return found.calibration.ratio_of(name)


def test_runs_of_the_predicted_machine_teach_nothing():
    found = learn(BLANK, [run_of(plan_of(layout), ()) for layout in LAYOUTS])
    assert {round(residual.ratio, 6) for residual in found.calibration.residuals} == {1.0}
    assert found.worse == ()


def test_slow_kernels_and_slow_tensor_parallelism_are_told_apart():
    truth = factors(("compute", 1.2), ("communication tp", 1.5))
    runs = [run_of(plan_of(layout, seq_len), truth) for layout in LAYOUTS for seq_len in (4096, 8192)]
    found = learn(BLANK, runs)
    assert learned_ratio(found, "compute") == pytest.approx(1.2, abs=0.02)
    assert learned_ratio(found, "communication tp") == pytest.approx(1.5, abs=0.05)
    # Kernels and collectives run beside each other: shares taken once, at the factors before, leave 4 % here.
    assert max(abs(change.after_fraction) for change in found.changes) < 0.01
    assert found.worse == ()


def test_one_run_moves_less_than_many():
    truth = factors(("communication tp", 1.5))
    one = learn(BLANK, [run_of(plan_of({"tp": 8}), truth)])
    many = learn(BLANK, [run_of(plan_of({"tp": 8}, seq_len), truth) for seq_len in (2048, 4096, 6144, 8192)])
    assert 1 < learned_ratio(one, "communication tp") < learned_ratio(many, "communication tp") < 1.5


def test_an_outlier_does_not_decide_and_is_named():
    truth = factors(("compute", 1.1))
    runs = [run_of(plan_of({"dp_shard": 8}, seq_len), truth) for seq_len in (2048, 3072, 4096, 6144, 8192)]
    odd = run_of(plan_of({"dp_shard": 8}, 5120), (), name="odd", ratio=0.9)
    found = learn(BLANK, [*runs, odd])
    assert learned_ratio(found, "compute") == pytest.approx(1.1, abs=0.03)
    assert {change.run for change in found.worse} == {"odd"}


def test_factors_stay_within_their_bounds():
    found = learn(BLANK, [run_of(plan_of({"dp_shard": 8}, seq_len), (), ratio=9.0) for seq_len in (2048, 4096, 8192)])
    assert all(0.5 <= residual.ratio <= 2.0 for residual in found.calibration.residuals)
    assert learned_ratio(found, "compute") == 2.0


def test_memory_is_learned_for_every_pool_of_it():
    truth = factors(("memory allocated", 1.1), ("memory reserved", 1.05), ("memory outside", 1.2))
    runs = [run_of(plan_of(layout), truth) for layout in LAYOUTS]
    found = learn(BLANK, runs)
    for name, ratio in (("memory allocated", 1.1), ("memory reserved", 1.05), ("memory outside", 1.2)):
        assert learned_ratio(found, name) == pytest.approx(ratio, abs=0.02)
    parts = predicted_by(runs[0].plan, found.calibration).memory.worst
    assert sum(entry.num_bytes for entry in parts.components) == parts.device_used_bytes


def test_learning_goes_on_where_it_ended():
    truth = factors(("compute", 1.2))
    plan = plan_of({"dp_shard": 8})
    once = learn(BLANK, [run_of(plan, truth)]).calibration
    twice = learn(once, [run_of(plan, truth, base=once)]).calibration
    residual = next(residual for residual in twice.residuals if residual.name == "compute")
    assert residual.num_runs == 2
    assert abs(residual.ratio - 1.2) < abs(once.ratio_of("compute") - 1.2)


@pytest.fixture
def run_folder(tmp_path):
    def make(name, *, ratio, device="NVIDIA H100 80GB HBM3"):
        plan, folder = plan_of({"dp_shard": 8}), tmp_path / name
        folder.mkdir()
        (folder / "plan.json").write_text(json.dumps(plan_to_json(plan)), encoding="utf-8")
        step_s = ratio * predicted_by(plan, BLANK).time.step_s
        measurement = {
            "schema": "shardwise.measurement/1",
            "memory": {},
            "time": {"step_s": step_s, "num_steps_measured": 9},
            "environment": {"device": device, "cuda": "13.0", "torch": "2.11.0", "world_size": 8},
        }
        (folder / "measurement.json").write_text(json.dumps(measurement), encoding="utf-8")
        return folder

    return make


def test_the_calibration_that_follows_is_written_and_predicts_the_run(run_folder, tmp_path, capsys):
    folder, out = run_folder("one", ratio=1.25), tmp_path / "learned.json"
    assert main(["reconcile", str(folder), "--out", str(out)]) == 0
    assert "The calibration that follows" in capsys.readouterr().out
    found = read_calibration(out)
    assert found.machine.gpu_id == "h100-sxm"
    assert found.ratio_of("compute") > 1.15
    assert main(["reconcile", str(folder), "--calibration", str(out), "--json"]) == 0
    step = json.loads(capsys.readouterr().out)["rows"][0]
    assert abs(step["signed_error_fraction"]) < 0.03


def test_a_run_that_is_predicted_worse_is_named(run_folder, tmp_path, capsys):
    runs = [str(run_folder(name, ratio=ratio)) for name, ratio in (("a", 1.3), ("b", 1.31), ("c", 1.32), ("d", 1.0))]
    assert main(["reconcile", *runs, "--out", str(tmp_path / "learned.json"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert len(answer["runs"]) == 4
    assert answer["calibration"]["worse"] == [f"{runs[3]}: step time"]


def test_runs_of_two_devices_are_refused(run_folder, tmp_path, capsys):
    runs = [str(run_folder("a", ratio=1.1)), str(run_folder("b", ratio=1.1, device="NVIDIA A100-SXM4-80GB"))]
    assert main(["reconcile", *runs, "--out", str(tmp_path / "learned.json")]) == 2
    assert "different devices" in capsys.readouterr().err


def test_an_existing_calibration_is_not_overwritten(run_folder, tmp_path, capsys):
    out = tmp_path / "learned.json"
    out.write_text("mine", encoding="utf-8")
    assert main(["reconcile", str(run_folder("a", ratio=1.1)), "--out", str(out)]) == 2
    assert out.read_text(encoding="utf-8") == "mine"


def test_measured_tables_stay_beside_the_factors():
    measured = replace(BLANK, machine=H100, kernel_launch_s=9e-6)
    found = learn(measured, [run_of(plan_of({"dp_shard": 8}), (), ratio=1.1, base=measured)])
    assert found.calibration.kernel_launch_s == 9e-6
