"""A profiled run beside its prediction: parts of time, collectives, causes, both timelines on one page."""

import json

import pytest

from measure.made_up_traces import trace_text
from measure.test_step_sample import gpu_step
from reconcile.test_totals import TITAN_PLAN
from shardwise.cli.main import main
from shardwise.ledger import TIME_COMPONENTS
from shardwise.plan_file import plan_to_json, read_plan
from shardwise.predict import predict
from shardwise.reconcile.measured import measured_totals
from shardwise.reconcile.measured_timeline import measured_timeline
from shardwise.reconcile.totals import reconcile
from shardwise.reconcile.traced import traced_components

PLAN = read_plan(TITAN_PLAN)
US = 1e-6


def profiled_measurement(prediction, **more_s):
    """A measurement that agrees with a prediction in every part but those that are named."""
    parts = traced_components(PLAN, prediction)
    parts |= {name: parts.get(name, 0.0) + added_s for name, added_s in more_s.items()}
    gathers = [{"kind": "all_gather", "num_calls": 64, "work_s": 0.2, "exposed_s": 0.05}]
    return {
        "schema": "shardwise.measurement/1",
        "memory": {"components_bytes": {"parameters": 4_015_130_624}},
        "time": {"step_s": 1.5, "num_steps_measured": 9, "components_s": parts, "communication": gathers},
    }


@pytest.fixture
def run_folder(tmp_path):
    (tmp_path / "plan.json").write_text(json.dumps(plan_to_json(PLAN)), encoding="utf-8")
    measurement = profiled_measurement(predict(PLAN), backward=0.3, exposed_communication=-0.05, forward=0.05)
    (tmp_path / "measurement.json").write_text(json.dumps(measurement), encoding="utf-8")
    (tmp_path / "traces").mkdir()
    for step in (3, 5):
        events = gpu_step() if step == 5 else gpu_step()[:1]
        (tmp_path / "traces" / f"step-{step:08d}-rank-0000.json").write_text(trace_text(events), encoding="utf-8")
    return tmp_path


def test_parts_of_a_step_are_joined_by_the_ledgers_names(run_folder):
    found = reconcile(PLAN, predict(PLAN), measured_totals(run_folder, PLAN))
    gaps = {row.quantity: row.gap_amount for row in found.group("time")}
    assert set(gaps) <= set(TIME_COMPONENTS)
    assert gaps["backward"] == pytest.approx(0.3)
    assert gaps["exposed_communication"] == pytest.approx(-0.05)
    assert gaps["optimizer"] == pytest.approx(0.0)


def test_computation_that_communication_slows_is_computation_as_in_a_trace():
    """The parts keep their sum; what is exposed is only what stands alone, and the rest is laid to what was slowed."""
    prediction = predict(PLAN)
    said = {entry.component: entry.duration_s for entry in prediction.time.components}
    traced = traced_components(PLAN, prediction)
    assert sum(traced.values()) == pytest.approx(sum(said.values()))
    assert 0 < traced["exposed_communication"] < said["exposed_communication"]
    assert traced["backward"] > said["backward"]
    assert traced["optimizer"] == said["optimizer"]


def test_causes_are_named_until_they_explain_most(run_folder):
    """0.3 of 0.4 seconds is too little to stop at, 0.35 is enough."""
    found = reconcile(PLAN, predict(PLAN), measured_totals(run_folder, PLAN))
    causes = [cause for cause in found.causes if cause.row.group == "time"]
    assert causes[0].row.quantity == "backward"
    assert causes[0].share_fraction == pytest.approx(0.75)
    assert causes[1].share_fraction == pytest.approx(0.125)
    assert len(causes) == 2


def test_predicted_axes_of_one_kind_are_added_before_they_are_compared(run_folder):
    prediction = predict(PLAN)
    found = reconcile(PLAN, prediction, measured_totals(run_folder, PLAN))
    rows = {row.quantity: row for row in found.group("communication")}
    assert rows["all_gather work"].measured_amount == 0.2
    assert rows["all_gather exposed"].measured_amount == 0.05
    said = [entry.total_s for entry in prediction.time.communication if entry.kind == "all_gather"]
    assert rows["all_gather work"].predicted_amount == pytest.approx(sum(said))
    assert rows["reduce_scatter work"].measured_amount == 0.0


def test_a_measured_step_is_drawn_from_the_last_trace_of_each_rank(run_folder):
    timeline = measured_timeline(run_folder, ranks=[(0, 0), (7, 0)])
    assert timeline.source == "measured"
    assert timeline.step_s == pytest.approx(49 * US)
    (rank,) = timeline.ranks
    spans = {(span.stream, span.category): (span.start_s, span.end_s) for span in rank.spans}
    assert spans["stage 0/compute", "forward"] == pytest.approx((0, 10 * US))
    assert spans["stage 0/compute", "recompute"] == pytest.approx((10 * US, 15 * US))
    assert spans["stage 0/compute", "optimizer"] == pytest.approx((42 * US, 49 * US))
    assert spans["stage 0/group", "all_gather"] == pytest.approx((33 * US, 39 * US))


def test_a_run_without_traces_has_no_measured_timeline(tmp_path):
    assert measured_timeline(tmp_path, ranks=[(0, 0)]) is None


def test_the_page_shows_both_timelines_and_is_not_overwritten(run_folder, capsys):
    page = run_folder / "page.html"
    assert main(["reconcile", str(run_folder), "--html", str(page)]) == 0
    text = page.read_text(encoding="utf-8")
    for words in ("Where the step goes", "Where the memory goes", "rank 0 (simulated)", "rank 0 (measured)"):
        assert words in text
    assert "backward: 300.0 ms more than predicted" in capsys.readouterr().out
    assert main(["reconcile", str(run_folder), "--html", str(page)]) == 2
    assert "--force" in capsys.readouterr().err
