"""Our trainer's first runs on two H200, beside their predictions: what the band of our own trainer is made of.

Usage: python -m benchmarks.own_runs

Reads ``benchmarks/results/2026-11-28-h200-calibrated-runs*.jsonl``: dense 16-bit runs, eager and compiled, one to three
times. Those in which one rank held whole units are left out: units have been cast at once since, with less work for
the host. The runs of later days judge the band: one H200 of 2026-11-29 and 2026-11-30, adapters among them.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from shardwise.plan_file import read_plan
from shardwise.predict.time import predict_time
from shardwise.step.native_engine import is_alone
from shardwise.validate.accuracy import percentile

RESULTS = Path(__file__).parent / "results"
FITTED = ("2026-11-28-h200-calibrated-runs*.jsonl",)
JUDGED = ("2026-11-29-h200-against-peers-3.jsonl", "2026-11-30-h200-cells.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnRun:
    """One run beside its prediction."""

    name: str
    ratio: float
    """Measured over predicted step time."""
    is_in_band: bool


def own_runs(patterns: Sequence[str]) -> Iterator[OwnRun]:
    """Runs of our trainer in the files, in 16 bits, whose ranks were all there."""
    for path in sorted(path for pattern in patterns for path in RESULTS.glob(pattern)):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if "plan" not in row or "measured" not in row or row.get("ranks_imagined"):
                continue  # another program's run, or one rank of many
            plan, step_s = read_plan(row["plan"]), row["measured"]["step_s"]
            if not plan.recipe.precision.startswith("bf16"):
                continue
            if is_alone(plan.layout) and plan.layout.world_size > 1:
                continue  # made while the parameters of such units were cast one by one
            time, _ = predict_time(plan)
            yield OwnRun(
                name=f"{path.stem} {row['name']}",
                ratio=step_s / time.step_s,
                is_in_band=time.step_low_s <= step_s <= time.step_high_s,
            )


def main() -> None:
    """Print both groups, the percentiles of the first and how many of the second lie inside."""
    for name, patterns in (("fitted", FITTED), ("judged", JUDGED)):
        found = list(own_runs(patterns))
        for run in found:
            print(f"{run.name:75} {run.ratio:.3f} {'inside' if run.is_in_band else 'outside'}")
        ratios = [run.ratio for run in found]
        edges = percentile(ratios, 0.05), median(ratios), percentile(ratios, 0.95)
        inside = sum(run.is_in_band for run in found)
        print(
            f"{name}: {len(found)} runs, {inside} inside; percentiles 5, 50 and 95:", *(f"{one:.3f}" for one in edges)
        )


if __name__ == "__main__":
    main()
