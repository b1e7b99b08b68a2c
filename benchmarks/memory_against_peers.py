"""Ours and other estimators on the same measured runs: totals per family, and components whose true size is known.

Usage: python benchmarks/memory_against_peers.py [--write]   (--write records the tables under benchmarks/results)
"""

import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from shardwise.predict.memory import predict_memory
from shardwise.validate.accuracy import compare, interval_error_fraction, percentile
from shardwise.validate.components import ComponentComparison, component_comparisons
from shardwise.validate.peers import peer_estimates
from shardwise.validate.records import MeasuredRun
from shardwise.validate.shipped_runs import measured_runs

OURS = "shardwise"


def main() -> None:
    """Print both tables; with ``--write`` record them with today's date."""
    text = "\n".join(["# Memory against peers", "", *total_table(), "", *component_table()])
    print(text)
    if "--write" in sys.argv:
        path = Path(__file__).parent / "results" / f"memory_against_peers-{datetime.now(tz=UTC):%Y-%m-%d}.md"
        path.write_text(text + "\n", encoding="utf-8")
        print(f"wrote {path}")


def full_runs() -> list[MeasuredRun]:
    """Runs with a figure of allocated or reserved memory that train every weight: the only ones peers can answer."""
    return [
        run
        for run in measured_runs().runs
        if run.measured_low_bytes is not None and run.plan.recipe.adapter == "none" and run.scope != "device"
    ]


def total_table() -> Iterable[str]:
    """Median and 90th percentile of absolute error per family and estimator, with the signed median."""
    errors: dict[tuple[str, str], dict[str, list[float]]] = {}
    for run in full_runs():
        ours = compare(run, predict_memory)
        if ours.signed_error_fraction is None or run.measured_low_bytes is None or run.measured_high_bytes is None:
            continue
        group = errors.setdefault((run.family, run.scope), {})
        group.setdefault(OURS, []).append(ours.signed_error_fraction)
        for peer in peer_estimates(run.plan):
            error = interval_error_fraction(
                predicted=peer.total_bytes, low=run.measured_low_bytes, high=run.measured_high_bytes
            )
            group.setdefault(peer.name, []).append(error)
    names = list(dict.fromkeys(name for group in errors.values() for name in group))
    yield "Total per rank: median absolute error (signed median; 90th percentile), percent."
    yield ""
    yield "| family | scope | n | " + " | ".join(names) + " |"
    yield "|---|---|---:|" + "---:|" * len(names)
    for (family, scope), group in errors.items():
        cells = " | ".join(summary_text(group[name]) for name in names)
        yield f"| {family} | {scope} | {len(group[OURS])} | {cells} |"


def component_table() -> Iterable[str]:
    """The same for components whose true size is known."""
    groups: dict[str, list[ComponentComparison]] = {}
    for comparison in component_comparisons(predict_memory):
        family = "SIMUB200" if comparison.run_id.startswith("SIMUB200") else "RUNFMS"
        groups.setdefault(f"{family}, {comparison.component} ({comparison.how_known})", []).append(comparison)
    names = list(dict.fromkeys(name for group in groups.values() for row in group for name, _ in row.peers))
    yield "Components of known size: median absolute error (signed median; 90th percentile), percent."
    yield ""
    yield f"| component | n | {OURS} | " + " | ".join(names) + " |"
    yield "|---|---:|" + "---:|" * (1 + len(names))
    for label, rows in groups.items():
        cells = [summary_text([row.predicted_error_fraction for row in rows])]
        for name in names:
            found = [num_bytes / row.true_bytes - 1 for row in rows for peer, num_bytes in row.peers if peer == name]
            cells.append(summary_text(found) if found else "left out")
        yield f"| {label} | {len(rows)} | " + " | ".join(cells) + " |"


def summary_text(errors: list[float]) -> str:
    """``median (signed; p90)`` in percent."""
    absolute = [abs(error) for error in errors]
    return f"{median(absolute):.1%} ({median(errors):+.1%}; {percentile(absolute, 0.9):.1%})"


if __name__ == "__main__":
    main()
