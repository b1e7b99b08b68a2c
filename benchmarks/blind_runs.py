"""Predict runs before they are made, and lay what was measured beside it.

    PYTHONPATH=src:benchmarks/gpu python benchmarks/blind_runs.py predict --suite unseen-kinds >predicted.jsonl
    PYTHONPATH=src:benchmarks/gpu python benchmarks/blind_runs.py report predicted.jsonl measured.jsonl ...

``predict`` writes a line for every run of a suite; it is committed, and so has a date, before the runs are made.
``report`` prints a table in Markdown and the medians.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from train_suites import SUITES

from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.units import GIB


def predicted(suites: Iterable[str], gpu: str) -> Iterable[dict[str, object]]:
    """A line for every run: its plan, the step and its band, and memory."""
    for suite in suites:
        for run in SUITES[suite]:
            document = run.plan(gpu=gpu, world_size=1, is_tiny=False)
            found = predict(read_plan(document))
            yield {
                "suite": suite,
                "name": run.name,
                "plan": document,
                "step_s": found.time.step_s,
                "low_s": found.time.step_low_s,
                "high_s": found.time.step_high_s,
                "peak_allocated_bytes": found.memory.worst.peak_allocated_bytes,
            }


def rows(paths: Iterable[Path]) -> list[dict[str, object]]:
    """The lines of files."""
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines() if line]


def report(before: Path, after: Iterable[Path]) -> None:
    """Print every run that was made, its prediction of before, and the medians of the errors."""
    measured = {str(row["name"]): row["measured"] for row in rows(after) if "measured" in row}
    print("| run | predicted, ms | measured, ms | error | predicted, GiB | measured, GiB | error |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    errors: list[tuple[float, float, bool]] = []
    for row in rows([before]):
        found = measured.get(str(row["name"]))
        if not isinstance(found, dict):
            continue
        step_s, peak = float(str(row["step_s"])), float(str(row["peak_allocated_bytes"]))
        slower, larger = step_s / found["step_s"] - 1, peak / found["peak_allocated_bytes"] - 1
        in_band = float(str(row["low_s"])) <= found["step_s"] <= float(str(row["high_s"]))
        errors.append((abs(slower), abs(larger), in_band))
        print(
            f"| {row['name']} | {1e3 * step_s:.0f} | {1e3 * found['step_s']:.0f} | {slower:+.1%} | {peak / GIB:.2f} | "
            f"{found['peak_allocated_bytes'] / GIB:.2f} | {larger:+.1%} |"
        )
    if errors:
        times, sizes, inside = zip(*errors, strict=True)
        print(f"\n{len(errors)} runs: median {median(times):.1%} of the step, {sum(inside)} inside the band;", end=" ")
        print(f"median {median(sizes):.1%} of allocated memory")


def main() -> int:
    """Predict, or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    predictor = commands.add_parser("predict")
    predictor.add_argument("--gpu", default="h200-sxm")
    predictor.add_argument("--suite", nargs="+", choices=sorted(SUITES), default=["unseen-kinds"])
    reporter = commands.add_parser("report")
    reporter.add_argument("predicted", type=Path)
    reporter.add_argument("measured", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "report":
        report(arguments.predicted, arguments.measured)
        return 0
    for line in predicted(arguments.suite, arguments.gpu):
        sys.stdout.write(json.dumps(line) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
