"""What one measured row of a source says about its others: ``python benchmarks/one_reading.py [--write]``.

Every family is calibrated by one of its rows: not at all, its ratio carried over whole, and fading with what differs
(``predict/one_reading.py``). The fading is chosen on the first group, families that are never reported, and
shown on the second. Then whether it matters which row is measured: the first, the middle one, the longest step, and
the row most like all others. Figures are means, and for reported families medians, of the families' median errors.
"""

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from math import exp
from pathlib import Path
from statistics import fmean, median

from shardwise.predict.one_reading import PlanSizes, carried_share, plan_sizes
from shardwise.validate.time_accuracy import FITTED_TIME_FAMILIES, TimedRowAccuracy, time_accuracy

MOST_ROWS = 60
"""Of a family, tried as the measured one and looked at: an even sample of the larger ones."""
STRENGTHS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Times the fading that is used; 0 carries a ratio over whole."""


class Family:
    """Rows of one source: measured over predicted, and how alike their plans are."""

    def __init__(self, rows: Sequence[TimedRowAccuracy]) -> None:
        rows = rows[:: max(1, len(rows) // MOST_ROWS)]
        self.ratios = [1 / (1 + (row.signed_error_fraction or 0.0)) for row in rows]
        self.predicted_s = [row.predicted_s or 0.0 for row in rows]
        self.sizes: list[PlanSizes] = [plan_sizes(row.run.plan) for row in rows]
        self.shares = [[carried_share(one, other) for other in self.sizes] for one in self.sizes]

    def error(self, measured: int, strength: float | None) -> float:
        """Median error of the others; ``None`` measures nothing."""
        return median(
            abs(
                self.ratios[measured] ** (0.0 if strength is None else self.shares[measured][other] ** strength) / ratio
                - 1
            )
            for other, ratio in enumerate(self.ratios)
            if other != measured
        )

    def typical(self, strength: float | None) -> float:
        """For the typical choice of the measured row."""
        return median(self.error(measured, strength) for measured in range(len(self.ratios)))

    def choices(self) -> dict[str, int]:
        """Rows that a person may pick."""
        count = len(self.ratios)
        order = sorted(range(count), key=self.predicted_s.__getitem__)
        return {
            "the first row": 0,
            "the middle row": count // 2,
            "the shortest step": order[0],
            "the longest step": order[-1],
            "the most like the others": max(range(count), key=lambda number: sum(self.shares[number])),
        }


def lines() -> list[str]:
    """The record."""
    grouped: dict[str, list[TimedRowAccuracy]] = {}
    for row in time_accuracy().rows:
        name = row.run.family + ("*" if row.run.gaps else "")
        if row.signed_error_fraction is not None and name.removesuffix("*") in (*FITTED_TIME_FAMILIES, name):
            grouped.setdefault(name, []).append(row)
    families = {name: Family(rows) for name, rows in grouped.items() if len(rows) > 2}
    chosen_on = [name for name in families if name.removesuffix("*") in FITTED_TIME_FAMILIES]
    reported = [name for name in families if name not in chosen_on]

    def line(label: str, error: Callable[[Family], float]) -> str:
        chosen = fmean(error(families[name]) for name in chosen_on)
        others = [error(families[name]) for name in reported]
        return f"{label:32s} {100 * chosen:10.1f}% {100 * median(others):12.1f}% {100 * fmean(others):10.1f}%"

    found = [f"{'one row measured':32s} {'chosen on':>11s} {'reported':>13s} {'mean':>11s}"]
    found.append(line("none", lambda family: family.typical(None)))
    found += [
        line(
            f"fading times {strength:g}" if strength else "carried over whole",
            lambda family, s=strength: family.typical(s),
        )
        for strength in STRENGTHS
    ]
    found.append("")
    for label in next(iter(families.values())).choices():
        found.append(line(label, lambda family, name=label: family.error(family.choices()[name], 1.0)))
    found += ["", f"chosen on: {', '.join(chosen_on)}", f"reported: {', '.join(reported)}"]
    found.append(f"a share of {exp(-0.1):.2f} of a logarithmic error is carried over one doubling or one changed habit")
    return found


if __name__ == "__main__":
    text = "\n".join(lines())
    print(text)
    if "--write" in sys.argv:
        path = Path(__file__).parent / "results" / f"one_reading-{datetime.now(tz=UTC):%Y-%m-%d}.txt"
        path.write_text(text + "\n", encoding="utf-8")
