"""Print how far collective times are from every shipped sweep: by NCCL's model alone, and with the other sweeps.

Usage: python benchmarks/collective_accuracy.py [--write]
(each sweep is left out of the corrections that it is compared with; readings off charts are never part of them;
--write records the table under benchmarks/results)
"""

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from shardwise.catalog.hardware.sweeps import CollectiveSweep, load_collective_sweeps
from shardwise.predict.collective_correction import SweepBook, sweep_book, sweep_kind, sweep_placement
from shardwise.predict.communication import curve_by
from shardwise.units import MIB


def main() -> None:
    """Compare, print and record."""
    lines = list(table_lines(load_collective_sweeps()))
    print("\n".join(lines))
    if "--write" in sys.argv:
        path = Path(__file__).parent / "results" / f"collective_accuracy-{datetime.now(tz=UTC):%Y-%m-%d}.txt"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"wrote {path}")


def table_lines(sweeps: Sequence[CollectiveSweep]) -> Iterator[str]:
    """A line per sweep: points, sizes, and median signed and largest error of both predictions."""
    yield f"{'':76s} {'':>3s} {'from':>7s} {'to':>7s} | {'model alone':>15s} | {'without this':>15s} |"
    yield f"{'sweep':76s} {'n':>3s} {'MiB':>7s} {'MiB':>7s} | {'median':>7s} {'max':>7s} | {'median':>7s} {'max':>7s} |"
    alone: list[float] = []
    others: list[float] = []
    for index, sweep in enumerate(sweeps):
        by_model = errors(sweep, sweep_book(()))
        by_others = errors(sweep, sweep_book((*sweeps[:index], *sweeps[index + 1 :])))
        alone.append(median(map(abs, by_model)))
        others.append(median(map(abs, by_others)))
        yield (
            f"{sweep.name:76s} {len(by_model):3d} {sweep.points[0].num_bytes / MIB:7,.0f} "
            f"{sweep.points[-1].num_bytes / MIB:7,.0f} | {error_text(by_model)} | {error_text(by_others)} | "
            f"{chosen(sweep)}"
        )
    yield (
        f"median over {len(sweeps)} sweeps of their median absolute error: {median(alone):.1%} by the model alone, "
        f"{median(others):.1%} with the other sweeps"
    )


def errors(sweep: CollectiveSweep, book: SweepBook) -> list[float]:
    """Signed relative errors, a point each."""
    curve = curve_by(sweep_kind(sweep), sweep_placement(sweep), book=book)
    return [curve.time_s(point.num_bytes) / point.duration_s - 1 for point in sweep.points]


def error_text(found: list[float]) -> str:
    """The median with its sign and the largest."""
    return f"{median(found):+7.1%} {max(map(abs, found)):7.1%}"


def chosen(sweep: CollectiveSweep) -> str:
    """What the tuner takes for the smallest and the largest message."""
    curve = curve_by(sweep_kind(sweep), sweep_placement(sweep), book=sweep_book(()))
    first, last = (curve.call(point.num_bytes) for point in (sweep.points[0], sweep.points[-1]))
    return f"{first.algorithm} {first.protocol} to {last.algorithm} {last.protocol}, {last.bottleneck}"


if __name__ == "__main__":
    main()
