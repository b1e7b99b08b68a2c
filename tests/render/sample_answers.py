"""A search, an explanation and an accuracy report made by hand from the sample records."""

from dataclasses import replace

from render.sample_records import PLAN, PREDICTION, too_big
from shardwise.explain.records import Explanation, Finding, Quantity, VerifiedChange
from shardwise.layout import Layout
from shardwise.search import (
    ClosestPlan,
    Difference,
    RankedPlan,
    Rejection,
    Relief,
    SearchBounds,
    SearchResult,
    SearchSpace,
)
from shardwise.units import GIB
from shardwise.validate.accuracy import AccuracyReport, ErrorSummary, FitSummary, RowAccuracy
from shardwise.validate.records import MeasuredRun, UnusedRow

BEST = RankedPlan(
    rank=1,
    plan=PLAN,
    prediction=PREDICTION,
    objective_value=2.0,
    ratio_to_best=1.0,
    is_tie=True,
    num_axes=3,
    differences=(),
    why="Best of 2 layouts that fit.",
)
RUNNER_UP = replace(
    BEST,
    rank=2,
    plan=replace(PLAN, layout=Layout(dp_replicate=2, dp_shard=2, tp=4)),
    objective_value=2.5,
    ratio_to_best=1.25,
    is_tie=False,
    num_axes=2,
    differences=(Difference(component="exposed_communication", slower_s=0.5),),
    why="25.0% slower (+500.0 ms): exposed communication +500.0 ms.",
)
FOUND = SearchResult(
    objective="step_time",
    bounds=SearchBounds(),
    space=SearchSpace(
        layouts_considered=97,
        layouts_invalid=53,
        layouts_too_big=29,
        layouts_slower=13,
        layouts_evaluated=40,
        layouts_predicted=2,
        layouts_feasible=15,
        wall_s=0.125,
    ),
    plans=(BEST, RUNNER_UP),
    pareto=(BEST,),
    rejected=(Rejection(rule="layout-heads-over-tp", count=53, example="tp=3 with 7 heads", fix="set tp=1"),),
    closest=None,
    assumptions=("no global batch was given",),
    notes=("Start with the simplest.",),
)
NOT_FOUND = replace(
    FOUND,
    plans=(),
    pareto=(),
    notes=(),
    closest=ClosestPlan(
        plan=PLAN,
        prediction=too_big(),
        missing_bytes=8 * GIB,
        lacks="8.00 GiB",
        because="activations fill the device",
        reliefs=(
            Relief(
                change="num_nodes=4",
                plan=PLAN,
                device_used_bytes=41 * GIB,
                needed_bytes=37 * GIB,
                step_s=1.0,
                caution="twice the price",
            ),
        ),
    ),
)
EXPLANATION = Explanation(
    plan=PLAN,
    prediction=too_big(),
    findings=(
        Finding(topic="verdict", claim="tiny-7 does not fit."),
        Finding(
            topic="memory",
            claim="Largest component: activations.",
            numbers=(
                Quantity(name="activations", value=24 * GIB, unit="bytes"),
                Quantity(name="share", value=0.25, unit="fraction"),
            ),
            because="two micro-batches are in flight",
            suggestion="recompute",
        ),
    ),
    changes=(
        VerifiedChange(
            changes=(("recompute", "full"),),
            cost="about a third more compute",
            effort=0,
            plan=PLAN,
            fit="fits",
            device_used_bytes=43 * GIB,
            needed_bytes=38 * GIB,
            saved_bytes=26 * GIB,
            step_s=2.5,
            step_ratio=1.25,
        ),
    ),
)
RUN = MeasuredRun(
    id="ACME-1",
    family="ACME",
    plan=PLAN,
    measured_low_bytes=59 * GIB,
    measured_high_bytes=61 * GIB,
    scope="allocated",
    outcome="fits",
    decides_outcome=True,
    assumptions=(),
    source="made for a test",
    date="2026-11-01",
    split="",
)
SUMMARY = ErrorSummary(
    name="ACME",
    scope="allocated",
    num_readings=1,
    median_signed_fraction=-0.03,
    median_absolute_fraction=0.03,
    p90_absolute_fraction=0.05,
    max_absolute_fraction=0.07,
    in_band_fraction=1.0,
)
FITS = FitSummary(name="ACME", num_fits_right=11, num_fits_wrong=2, num_oom_wrong=3, num_oom_right=5)
REPORT = AccuracyReport(
    rows=(
        RowAccuracy(run=RUN, predicted_bytes=57 * GIB, predicted_fits=True, signed_error_fraction=-0.0339, refusal=""),
    ),
    families=(SUMMARY,),
    overall=(SUMMARY,),
    reported=(SUMMARY,),
    reported_engines=(),
    fitted=(),
    fits=FITS,
    fits_by_family=(FITS,),
    unused=(UnusedRow(id="ACME-2", family="ACME", reason="sequence length not printed"),),
)
