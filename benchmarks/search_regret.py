"""What following the ranking would have cost on published sweeps: ``python benchmarks/search_regret.py [--write]``.

A sweep is one source's runs of one model on one cluster with one sequence length, global batch and precision that
differ in layout, micro-batch size or recomputation. Its rows are ranked by predicted time, as a search ranks the
layouts it predicts. The regret is how much slower a row was measured than the fastest one, of two rows: the one with
the shortest predicted time, and the one that ``shardwise plan`` lists first, the simplest of those that tie with it.
Runs that did something a plan cannot say are left out.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import log
from pathlib import Path
from statistics import median, quantiles

from shardwise.predict import predict
from shardwise.search.evaluation import Evaluated
from shardwise.search.ranking import rank
from shardwise.search.simplicity import short_variant
from shardwise.validate.records import TimedRun
from shardwise.validate.shipped_runs import timed_runs
from shardwise.validate.time_accuracy import FITTED_TIME_FAMILIES

RESULTS = Path(__file__).parent / "results"
MIN_ROWS = 3
MIN_SPREAD = 0.02
"""Sweeps whose rates differ by less than readings of one run do."""
TIE_RATIO = 1.05
"""Rows that are predicted this close to each other are ties (``search/ranking.py``)."""
LAYOUT_CHOICES = ("tp", "cp", "pp", "vpp", "ep", "schedule", "dp_shard", "dp_replicate", "zero_stage")
LIMIT = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured run with its prediction."""

    run: TimedRun
    found: Evaluated

    @property
    def measured(self) -> float:
        """Seconds per token."""
        return self.run.measured_s / self.run.plan.tokens_per_step

    @property
    def predicted(self) -> float:
        """Seconds per token."""
        return self.found.prediction.time.step_s / self.run.plan.tokens_per_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """One sweep."""

    name: str
    rows: Sequence[Row]
    first: Row
    recommended: Row
    best: Row

    def of(self, row: Row) -> float:
        """How much slower a row was measured than the fastest one."""
        return row.measured / self.best.measured - 1

    @property
    def random(self) -> float:
        """The regret of choosing any row with equal chance."""
        return sum(self.of(row) for row in self.rows) / len(self.rows)


def sweeps() -> list[list[TimedRun]]:
    """Runs of one sweep, model, cluster, length, global batch and precision that differ in how they are divided."""
    groups: dict[object, list[TimedRun]] = {}
    for run in timed_runs().runs:
        plan, recipe = run.plan, run.plan.recipe
        key = (run.family, run.sweep, plan.model.spec_json, plan.cluster.spec_json, plan.engine, run.variant)
        if run.is_faithful:
            groups.setdefault(
                (*key, recipe.seq_len, plan.global_batch_size, recipe.precision, recipe.compile), []
            ).append(run)
    chosen = []
    for runs in groups.values():
        measured = [run.measured_s / run.plan.tokens_per_step for run in runs]
        choices = {(run.plan.layout, run.plan.recipe.micro_batch_size, run.plan.recipe.recompute) for run in runs}
        if len(choices) >= MIN_ROWS and max(measured) / min(measured) > 1 + MIN_SPREAD:
            chosen.append(runs)
    return chosen


def regret(runs: Sequence[TimedRun]) -> Regret:
    """Rank the rows of one sweep."""
    rows = []
    for number, run in enumerate(runs):
        found = Evaluated(family=(number,), plan=run.plan, prediction=predict(run.plan))
        rows.append(Row(run=run, found=found))
    first = min(rows, key=lambda row: row.predicted)
    batches = {row.run.plan.tokens_per_step for row in rows}
    recommended = first
    if len(batches) == 1:
        plans = rank([row.found for row in rows], objective="step_time", limit=1)
        recommended = next(row for row in rows if row.found.plan == plans[0].plan)
    return Regret(
        name=f"{runs[0].family} {runs[0].sweep}",
        rows=rows,
        first=first,
        recommended=recommended,
        best=min(rows, key=lambda row: row.measured),
    )


def pairwise(found: Sequence[Regret]) -> tuple[float, float]:
    """Median and 80th percentile of how far predicted ratios of two rows of a sweep are from measured ones."""
    errors = [
        abs(log(one.predicted / other.predicted) - log(one.measured / other.measured))
        for sweep in found
        for position, one in enumerate(sweep.rows)
        for other in sweep.rows[:position]
    ]
    return median(errors), quantiles(errors, n=10)[7]


def misses(found: Sequence[Regret]) -> Iterator[str]:
    """Missed sweeps by what the row ranked first and the fastest do differently, and what each is predicted at."""
    groups: dict[str, list[Regret]] = {}
    for sweep in found:
        if sweep.of(sweep.first) > LIMIT:
            groups.setdefault(f"{sweep.first.run.family}: {_differing(sweep)}", []).append(sweep)
    yield "| misses: what differs | sweeps | ties | listed first within 3% | error of the first | of the fastest |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for name, sweeps_of in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        ties = sum(sweep.best.predicted <= TIE_RATIO * sweep.first.predicted for sweep in sweeps_of)
        safe = sum(sweep.of(sweep.recommended) <= LIMIT for sweep in sweeps_of)
        errors = [
            median(rows.predicted / rows.measured - 1 for rows in side)
            for side in ([sweep.first for sweep in sweeps_of], [sweep.best for sweep in sweeps_of])
        ]
        yield f"| {name} | {len(sweeps_of)} | {ties} | {safe} | {errors[0]:+.1%} | {errors[1]:+.1%} |"


def _differing(sweep: Regret) -> str:
    """The choices in which the row ranked first and the fastest differ."""
    first, best = sweep.first.run.plan, sweep.best.run.plan
    names = [name for name in LAYOUT_CHOICES if getattr(first.layout, name) != getattr(best.layout, name)]
    recipe = ("micro_batch_size", "recompute")
    names += [name for name in recipe if getattr(first.recipe, name) != getattr(best.recipe, name)]
    return ", ".join(names) or "nothing that a plan says"


def report(found: Sequence[Regret]) -> str:
    """A table, one line a sweep, then what became of all of them."""
    lines = [
        "# Regret on published sweeps",
        "",
        f"`python benchmarks/search_regret.py --write`, {datetime.now(UTC):%Y-%m-%d}. Fitted families are marked: "
        "their rates chose the width of bands, no constant of the step time. Figures: slower than the fastest row, of "
        "the row predicted fastest and of the one that `plan` lists first and recommends, the simplest of its ties.",
        "",
        "| sweep | layouts | predicted fastest | listed first | any row | predicted fastest is | fastest is |",
        "| --- | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for sweep in sorted(found, key=lambda sweep: -sweep.of(sweep.first)):
        fitted = " (fitted)" if sweep.first.run.family in FITTED_TIME_FAMILIES else ""
        is_missed = sweep.of(sweep.first) > LIMIT
        names = [short_variant(row.run.plan) for row in (sweep.first, sweep.best)]
        lines.append(
            f"| {sweep.name}{fitted} | {len(sweep.rows)} | {sweep.of(sweep.first):.1%}{' **' if is_missed else ''} | "
            f"{sweep.of(sweep.recommended):.1%} | {sweep.random:.1%} | {names[0]} | {names[1] if is_missed else ''} |"
        )
    regrets = [sweep.of(sweep.first) for sweep in found]
    within = sum(value <= LIMIT for value in regrets)
    also = sum(sweep.of(sweep.recommended) <= LIMIT for sweep in found)
    half, most = pairwise(found)
    lines += [
        "",
        f"{within} of {len(found)} sweeps within {LIMIT:.0%} by the row predicted fastest, {also} by the one listed "
        f"first (mean {sum(sweep.of(sweep.recommended) for sweep in found) / len(found):.1%}). Of the former: median "
        "regret "
        f"{median(regrets):.1%}, "
        f"mean {sum(regrets) / len(regrets):.1%}, worst {max(regrets):.1%}; choosing any row costs "
        f"{sum(sweep.random for sweep in found) / len(found):.1%} in the mean.",
        "",
        f"Two rows of a sweep: the predicted ratio is {half:.1%} off in the median, {most:.1%} for eight of ten pairs.",
        "",
        "Errors are medians of predicted over measured step time; a miss is a difference between the two.",
        "",
        *misses(found),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the table, and write it when asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    text = report([regret(runs) for runs in sweeps()])
    print(text)
    if arguments.write:
        path = RESULTS / f"search_regret-{datetime.now(UTC):%Y-%m-%d}.md"
        path.write_text(text)
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
