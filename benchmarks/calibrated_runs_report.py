"""Errors of runs that were predicted before and after a calibration: ``calibrated_runs_report.py FOLDER``.

Reads ``runs.jsonl`` of ``benchmarks/gpu/calibrated_runs.sh`` and predicts every plan again by this checkout, so that a
change of the model can be tried on runs that were measured once. ``--as-written`` keeps the predictions of that day.
Exposed communication is what a trace shows of it on both sides: time in which some runs and nothing is computed.
Messages of a pipeline count as its bubble.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

Row = dict[str, Any]
QUANTITIES = ("step_s", "peak_allocated_bytes", "peak_reserved_bytes", "device_used_bytes")


def read_rows(folder: Path, *, is_written: bool) -> list[Row]:
    """The runs that ended, with both predictions."""
    path = folder / "runs.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    for row in rows:
        if "error" in row:
            print(f"{row['name']}: FAILED {row['error'][:300]}")
    ended = [row for row in rows if "measured" in row]
    return ended if is_written else [predicted_again(row, folder / "calibration.json") for row in ended]


def predicted_again(row: Row, calibration: Path) -> Row:
    """The row with this checkout's predictions."""
    from shardwise.calibration_file import read_calibration
    from shardwise.plan_file import read_plan
    from shardwise.predict import predict
    from shardwise.predict.calibrated_cluster import calibrated_cluster
    from shardwise.reconcile.traced import traced_components

    plan = read_plan(row["plan"])
    measured = replace(plan, cluster=calibrated_cluster(plan.cluster, read_calibration(calibration)))
    again = {}
    for name, one in (("predicted", plan), ("calibrated", measured)):
        found = predict(one)
        worst = found.memory.worst
        parts = traced_components(one, found)
        again[name] = {
            "step_s": found.time.step_s,
            "exposed_communication_s": parts["exposed_communication"],
            "components_s": parts,
            "peak_allocated_bytes": worst.peak_allocated_bytes,
            "peak_reserved_bytes": worst.peak_reserved_bytes,
            "device_used_bytes": worst.device_used_bytes,
        }
    return {**row, **again}


def table(rows: list[Row]) -> Iterator[str]:
    """One line a run, then the medians."""
    yield f"{'run':38} {'step':>9} {'catalogue':>9} {'calibrated':>10} {'alloc':>7} {'reserved':>8} {'used':>7} exposed"
    for row in rows:
        measured, before, after = row["measured"], row["predicted"], row["calibrated"]
        yield (
            f"{row['name']!s:38} {1e3 * measured['step_s']:6.0f} ms {_error(before, measured, 'step_s'):>9} "
            f"{_error(after, measured, 'step_s'):>10} {_error(after, measured, 'peak_allocated_bytes'):>7} "
            f"{_error(after, measured, 'peak_reserved_bytes'):>8} {_error(after, measured, 'device_used_bytes'):>7}  "
            + _exposed(row)
        )
    yield ""
    for name in ("predicted", "calibrated"):
        yield f"{name}: " + ", ".join(
            f"{quantity} median |error| {value:.1%}, median {signed:+.1%}"
            for quantity in QUANTITIES
            if (found := list(_errors(rows, name, quantity)))
            for value, signed in [(median(map(abs, found)), median(found))]
        )
        points = list(_exposed_points(rows, name))
        if points:
            yield f"{name}: exposed communication, median |difference| {median(map(abs, points)):.1%} of the step"


def _errors(rows: list[Row], name: str, quantity: str) -> Iterator[float]:
    for row in rows:
        if row["measured"].get(quantity):
            yield row[name][quantity] / row["measured"][quantity] - 1


def _error(predicted: dict[str, float], measured: dict[str, float], quantity: str) -> str:
    return f"{predicted[quantity] / measured[quantity] - 1:+.1%}" if measured.get(quantity) else "-"


def _exposed_points(rows: list[Row], name: str) -> Iterator[float]:
    """Share of the step that is exposed communication, predicted less measured."""
    for row in rows:
        profile = row["measured"].get("profile")
        if isinstance(profile, dict) and profile["step_s"]:
            share = row[name]["exposed_communication_s"] / row[name]["step_s"]
            yield share - _traced_exposed_s(profile) / profile["step_s"]


def ranking(rows: list[Row]) -> Iterator[str]:
    """For every model and length: what the run predicted best costs over the one measured best, per token."""
    families: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        plan = row["plan"]
        families.setdefault((plan["model"]["hidden_size"], plan["recipe"]["seq_len"]), []).append(row)
    for (hidden, seq_len), runs in sorted(families.items()):
        if len(runs) == 1:
            continue
        best = min(_per_token(run, "measured") for run in runs)
        chosen = {name: min(runs, key=partial(_per_token, of=name)) for name in ("predicted", "calibrated")}
        regrets = [
            f"{name} best: {run['name']} ({_per_token(run, 'measured') / best - 1:+.1%})"
            for name, run in chosen.items()
        ]
        yield f"hidden {hidden}, {seq_len} tokens, {len(runs)} runs; {'; '.join(regrets)}"


def _per_token(row: Row, of: str) -> float:
    recipe = row["plan"]["recipe"]
    return float(row[of]["step_s"] / (recipe["global_batch_size"] * recipe["seq_len"]))


def _traced_exposed_s(profile: dict[str, Any]) -> float:
    """Exposed communication of a profile without messages between stages."""
    messages = (one["exposed_s"] for one in profile["collectives"] if one["kind"] == "send_recv")
    return float(profile["exposed_communication_s"] - sum(messages))


def _exposed(row: Row) -> str:
    profile = row["measured"].get("profile")
    if not isinstance(profile, dict) or not profile["step_s"]:
        return "-"
    shares = [row[name]["exposed_communication_s"] / row[name]["step_s"] for name in ("predicted", "calibrated")]
    measured = _traced_exposed_s(profile) / profile["step_s"]
    return f"{shares[0]:.1%} / {shares[1]:.1%} / measured {measured:.1%}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--as-written", action="store_true")
    arguments = parser.parse_args()
    rows = read_rows(arguments.folder, is_written=arguments.as_written)
    print("\n".join((*table(rows), "", *ranking(rows))))


if __name__ == "__main__":
    main()
