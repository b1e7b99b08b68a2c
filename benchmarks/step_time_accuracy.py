"""Print predicted beside measured step time for every shipped rate that a plan repeats.

Usage: python benchmarks/step_time_accuracy.py [FAMILY ...] [--summary] [--unused] [--utilisation] [--write]
(--summary leaves the rows out; --utilisation adds published MFU and HFU recomputed by each source's own convention;
--write records the summaries of all families under benchmarks/results)
"""

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from shardwise.validate.published_utilisation import published_utilisations

from shardwise.validate.shipped_runs import timed_runs
from shardwise.validate.time_accuracy import TimeAccuracyReport, TimedRowAccuracy, TimeSummary, time_accuracy


def main() -> None:
    """Predict the runs of the named families, or of all of them, and print rows and summaries."""
    families = {argument for argument in sys.argv[1:] if not argument.startswith("--")}
    report = time_accuracy(runs=[run for run in timed_runs().runs if not families or run.family in families])
    if "--summary" not in sys.argv:
        for row in report.rows:
            print(row_text(row))
    summaries = "\n".join(summary_lines(report))
    print(summaries)
    if "--unused" in sys.argv:
        print("\n".join(unused_lines(report)))
    if "--utilisation" in sys.argv:
        print("\n".join(utilisation_lines()))
    if "--write" in sys.argv and not families:
        path = Path(__file__).parent / "results" / f"step_time_accuracy-{datetime.now(tz=UTC):%Y-%m-%d}.txt"
        path.write_text(
            "\n".join([summaries, "", *utilisation_lines(), "", *unused_lines(report)]) + "\n", encoding="utf-8"
        )
        print(f"wrote {path}")


def row_text(row: TimedRowAccuracy) -> str:
    """One run as one line: seconds, signed error, the plan, the shares of the predicted step, and gaps."""
    run, plan = row.run, row.run.plan
    layout, recipe = plan.layout, plan.recipe
    if row.predicted_s is None or row.signed_error_fraction is None:
        return f"{run.id:14s} {run.measured_s:10.4f} refused {row.refusal}"
    shares = " ".join(
        f"{entry.component[:5]} {entry.duration_s / row.predicted_s * 100:.0f}"
        for entry in row.components
        if entry.duration_s > 0.005 * row.predicted_s
    )
    where = (
        f"{plan.model.name[:14]:14s} L{plan.model.num_hidden_layers} h{plan.model.hidden_size} "
        f"{layout.world_size}x{plan.cluster.gpu.id} rep{layout.dp_replicate} dp{layout.dp_shard} z{layout.zero_stage} "
        f"tp{layout.tp} pp{layout.pp}x{layout.vpp} cp{layout.cp} ep{layout.ep} {layout.schedule} s{recipe.seq_len} "
        f"b{recipe.micro_batch_size} m{plan.num_microbatches} {recipe.recompute} {recipe.precision} {recipe.adapter}"
    )
    error = f"{row.signed_error_fraction * 100:+7.1f}%" + (" " if row.is_in_band else "!")
    gaps = f" | GAP {'; '.join(run.gaps)}" if run.gaps else ""
    return (
        f"{run.id:14s} {run.measured_s:10.4f} {row.predicted_s:10.4f} {error} | {plan.engine} {where} | {shares}{gaps}"
    )


def utilisation_lines() -> Iterator[str]:
    """How far recomputed utilisations lie from the published ones, per source and way of counting."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for one in published_utilisations().utilisations:
        found.setdefault((one.family, one.kind, one.convention), []).append(abs(one.difference_fraction))
    yield "published MFU and HFU, recomputed from the rate beside them: figures, largest difference in points"
    for (family, kind, convention), differences in found.items():
        yield f"{family:10s} {kind} {len(differences):4d} {100 * max(differences):6.2f}  {convention}"


def summary_lines(report: TimeAccuracyReport) -> Iterator[str]:
    """The table per family and over all of them."""
    yield (
        f"{'family':20s} {'n':>5s} {'bias':>8s} {'|median|':>8s} {'p90':>7s} {'max':>7s} {'1 row':>7s} "
        f"{'in band':>7s} {'tau':>6s} {'sweeps':>6s}"
    )
    for summary in (*report.families, report.reported, report.fitted, report.with_gaps):
        if summary is not None:
            yield summary_text(summary)
    yield (
        f"median over reported families of their median absolute error: {report.family_median_fraction * 100:.1f}%, "
        f"after one row of each was measured {report.family_calibrated_fraction * 100:.1f}%"
    )
    yield f"fitted on: {', '.join(report.fitted_families) or 'none'}; reported: {', '.join(report.reported_families)}"
    yield f"used {len(report.rows)} rows; not used {len(report.unused)} (--unused lists the reasons); * runs with a gap"


def summary_text(summary: TimeSummary) -> str:
    """One group as one line."""
    calibrated, tau = summary.calibrated_median_fraction, summary.kendall_tau_ratio
    return (
        f"{summary.name + ('*' if summary.has_gaps else ''):20s} {summary.num_rows:5d} "
        f"{summary.median_signed_fraction * 100:+7.1f}% {summary.median_absolute_fraction * 100:7.1f}% "
        f"{summary.p90_absolute_fraction * 100:6.1f}% {summary.max_absolute_fraction * 100:6.1f}% "
        f"{'      -' if calibrated is None else f'{calibrated * 100:6.1f}%'} "
        f"{summary.in_band_fraction * 100:6.0f}% {'     -' if tau is None else f'{tau:6.2f}'} {summary.num_sweeps:6d}"
    )


def unused_lines(report: TimeAccuracyReport) -> Iterator[str]:
    """Rows left out, counted by family and reason."""
    for (family, reason), count in Counter((row.family, row.reason) for row in report.unused).most_common():
        yield f"{count:4d}  {family:10s} {reason}"


if __name__ == "__main__":
    main()
