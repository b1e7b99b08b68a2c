"""Times of collectives from a calibration: of the groups it timed, and ratios for groups of other sizes.

Only groups inside one host are meant; across hosts the catalogue holds, because one machine was measured.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from math import log2

from shardwise.calibration import Calibration, GroupTable, ResidualName, TimedBytes
from shardwise.predict.collective_correction import STAND_INS, Correction, Knots, at
from shardwise.predict.group_placement import GroupPlacement
from shardwise.predict.nccl_tuner import best_candidate
from shardwise.step.inventory import Axis, CollectiveKind
from shardwise.units import Seconds

HOST_BOUND_RATIO = 2.5
"""On GPUs a message counts from this multiple of the shortest time of its table on: the host issues a collective in 30
to 50 us, which hides what the links do for shorter calls (``benchmarks/results/2026-11-27-h100.md``, doubts)."""
FAMILIES: dict[Axis, ResidualName] = {
    "dp_shard": "communication dp",
    "dp_replicate": "communication dp",
    "tp": "communication tp",
    "cp": "communication cp",
    "pp": "communication pp",
    "ep": "communication ep",
}


def communication_ratio(axis: Axis, calibration: Calibration | None) -> float:
    """Measured over predicted time of an axis's collectives, learned from runs; 1 without a calibration."""
    return 1.0 if calibration is None else calibration.ratio_of(FAMILIES[axis])


def arrival_wait_s(placement: GroupPlacement) -> Seconds:
    """Seconds that every call takes longer behind computation: ranks arrive one by one, and its threads have to wake.

    Calls are timed in loops that do nothing else, a step computes between them. Calls that follow each other at once,
    a few after the last backward, are taken to meet as all others. 0 without a calibration that timed it.
    """
    calibration = placement.calibration
    if calibration is None or calibration.meeting_s is None or placement.num_hosts > 1:
        return 0.0
    return calibration.meeting_s


@lru_cache(maxsize=1024)
def calibrated_correction(kind: CollectiveKind, placement: GroupPlacement) -> Correction | None:
    """Times of a kind of collective of one group; ``None`` where no such group or link was timed."""
    calibration = placement.calibration
    if calibration is None or placement.num_hosts > 1:
        return None
    tables = _tables(kind, calibration)
    if not tables:
        return None
    own = next((table for table in tables if table.group_size == placement.size and table.kind == kind), None)
    source = f"calibration of {calibration.date}"
    if own is not None:
        points = _usable(own, calibration)
        times = tuple((log2(point.num_bytes), log2(point.duration_s)) for point in points)
        return Correction(times=_rising(times), is_measured=True, source=source)
    log2_ratios = _between(tables, placement, calibration)
    times = tuple(
        (position, log2_ratio + log2(best_candidate(kind, placement, 2**position).time_s(2**position)))
        for position, log2_ratio in log2_ratios
    )
    return Correction(times=_rising(times), is_measured=False, source=source)


def _tables(kind: CollectiveKind, calibration: Calibration) -> list[GroupTable]:
    """Tables of this collective, else of one that moves alike, by the size of their groups."""
    for stand_in in STAND_INS.get(kind, (kind,)):
        found = [table for table in calibration.collectives if table.kind == stand_in and table.points]
        if found:
            return sorted(found, key=lambda table: table.group_size)
    return []


def _usable(table: GroupTable, calibration: Calibration) -> tuple[TimedBytes, ...]:
    """The points that links decide; where CPUs compute, the host is part of the link."""
    if calibration.runs_on_cpu:
        return table.points
    from_s = HOST_BOUND_RATIO * table.shortest_s
    return tuple(point for point in table.points if point.duration_s >= from_s) or table.points[-1:]


def _rising(times: Knots) -> Knots:
    """The knots, with no time below that of fewer bytes."""
    kept: list[tuple[float, float]] = []
    for position, log_time in times:
        kept.append((position, max(log_time, kept[-1][1]) if kept else log_time))
    return tuple(kept)


def _between(tables: list[GroupTable], placement: GroupPlacement, calibration: Calibration) -> Knots:
    """Measured over modelled time of a size of group that was not timed: between two that were, or the nearest's."""
    below = [table for table in tables if table.group_size <= placement.size]
    above = [table for table in tables if table.group_size >= placement.size]
    if not below or not above:
        nearest = below[-1] if below else above[0]
        return tuple(_log2_ratios(nearest, placement, calibration))
    low, high = below[-1], above[0]
    if low.group_size == high.group_size:
        return tuple(_log2_ratios(low, placement, calibration))
    share = log2(placement.size / low.group_size) / log2(high.group_size / low.group_size)
    lower, upper = tuple(_log2_ratios(low, placement, calibration)), tuple(_log2_ratios(high, placement, calibration))
    positions = sorted({position for position, _ in (*lower, *upper)})
    return tuple((x, (1 - share) * at(lower, x) + share * at(upper, x)) for x in positions)


def _log2_ratios(
    table: GroupTable, placement: GroupPlacement, calibration: Calibration
) -> Iterator[tuple[float, float]]:
    size = table.group_size
    beside = replace(placement, size=size, ranks_per_domain=size, num_domains=1, ranks_per_host=size, calibration=None)
    for point in _usable(table, calibration):
        modelled_s: Seconds = best_candidate(table.kind, beside, point.num_bytes).time_s(point.num_bytes)
        yield log2(point.num_bytes), log2(point.duration_s / modelled_s)
