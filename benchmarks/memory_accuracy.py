"""Print predicted beside measured memory for every shipped run that a plan repeats.

Usage: python benchmarks/memory_accuracy.py [FAMILY ...] [--unused] [--write]
(--write records the summaries under benchmarks/results)
"""

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from shardwise.units import GIB
from shardwise.validate.accuracy import AccuracyReport, RowAccuracy, memory_accuracy
from shardwise.validate.shipped_runs import measured_runs


def main() -> None:
    """Predict the runs of the named families, or of all of them, and print rows and summaries."""
    families = {argument for argument in sys.argv[1:] if not argument.startswith("--")}
    runs = [run for run in measured_runs().runs if not families or run.family in families]
    report = memory_accuracy(runs=runs)
    for row in report.rows:
        print(row_text(row))
    summaries = "\n".join(summary_lines(report))
    print(summaries)
    if "--unused" in sys.argv:
        print("\n".join(unused_lines(report)))
    if "--write" in sys.argv and not families:
        path = Path(__file__).parent / "results" / f"memory_accuracy-{datetime.now(tz=UTC):%Y-%m-%d}.txt"
        path.write_text("\n".join([summaries, "", *unused_lines(report)]) + "\n", encoding="utf-8")
        print(f"wrote {path}")


def row_text(row: RowAccuracy) -> str:
    """One run as one line."""
    run, layout, recipe = row.run, row.run.plan.layout, row.run.plan.recipe
    low, high = run.measured_low_bytes, run.measured_high_bytes
    figure = "" if low is None or high is None else f"{low / GIB:7.2f}..{high / GIB:7.2f}"
    predicted = "" if row.predicted_bytes is None else f"{row.predicted_bytes / GIB:7.2f}"
    error = "" if row.signed_error_fraction is None else f"{row.signed_error_fraction * 100:+6.1f}%"
    answer = "" if row.predicted_fits is None else ("fits" if row.predicted_fits else "oom")
    wrong = " WRONG" if answer and answer != run.outcome else ""
    where = (
        f"{run.plan.model.name[:14]:14s} L{run.plan.model.num_hidden_layers} dp{layout.data_parallel_size} "
        f"z{layout.zero_stage} tp{layout.tp} pp{layout.pp}x{layout.vpp} cp{layout.cp} ep{layout.ep} {layout.schedule} "
        f"s{recipe.seq_len} b{recipe.micro_batch_size} {recipe.recompute} {recipe.precision} {recipe.adapter}"
    )
    return (
        f"{run.id:22s} {run.scope:9s} {figure:16s} {predicted:7s} {error:7s} "
        f"{run.outcome}/{answer}{wrong} | {run.plan.engine} {where} {row.refusal}"
    )


def summary_lines(report: AccuracyReport) -> Iterator[str]:
    """The tables per family and over all of them."""
    yield f"\n{'family':18s} {'scope':9s} {'n':>4s} {'median':>8s} {'|median|':>8s} {'p90':>7s} {'max':>7s}"
    for summary in (*report.families, *report.overall, *report.reported, *report.fitted):
        yield (
            f"{summary.name:18s} {summary.scope:9s} {summary.num_readings:4d} "
            f"{summary.median_signed_fraction * 100:+7.1f}% {summary.median_absolute_fraction * 100:7.1f}% "
            f"{summary.p90_absolute_fraction * 100:6.1f}% {summary.max_absolute_fraction * 100:6.1f}%"
        )
    yield f"\n{'outcome':18s} {'n':>4s} {'right':>7s} fits:fits fits:oom oom:fits oom:oom"
    for fit in (*report.fits_by_family, report.fits):
        yield (
            f"{fit.name:18s} {fit.num_rows:4d} {fit.correct_fraction * 100:6.1f}% {fit.num_fits_right:9d} "
            f"{fit.num_fits_wrong:8d} {fit.num_oom_wrong:8d} {fit.num_oom_right:7d}"
        )
    yield f"\nused {len(report.rows)} readings; not used {len(report.unused)} rows (--unused lists the reasons)"


def unused_lines(report: AccuracyReport) -> Iterator[str]:
    """Rows left out, counted by family and reason."""
    for (family, reason), count in Counter((row.family, row.reason) for row in report.unused).most_common():
        yield f"{count:4d}  {family:10s} {reason}"


if __name__ == "__main__":
    main()
