"""Measured over modelled time of collectives, carried from the groups that were timed to other sizes and groups.

Where a sweep exists for the very group, its times hold, interpolated in the logarithms of size and time. For another
number of ranks on the same links the ratio of measured to modelled time is interpolated in the logarithm of the ranks,
and held beyond them. A lone reading of large messages rescales the curve of the nearest group.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from math import log2

from shardwise.catalog.hardware.sweeps import CollectiveSweep, load_collective_sweeps
from shardwise.predict.group_placement import GroupPlacement, place_group
from shardwise.predict.nccl_tuner import best_candidate, candidates
from shardwise.step.inventory import CollectiveKind

Knots = tuple[tuple[float, float], ...]
"""``(log2 bytes, log2 value)``, ascending."""
STAND_INS: dict[CollectiveKind, tuple[CollectiveKind, ...]] = {
    "all_gather": ("all_gather", "reduce_scatter", "all_reduce"),
    "reduce_scatter": ("reduce_scatter", "all_gather", "all_reduce"),
}
"""Collective whose ratio stands for one not timed on these links: both are halves of a ring's all-reduce."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRatio:
    """Measured over modelled time of one number of ranks, over message sizes, both as logarithms."""

    size: int
    gpu_id: str
    log2_ratios: Knots
    is_ring: bool
    """Whether NCCL takes a ring for its largest message."""
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """Times of one group over message sizes, after measurements have corrected the model."""

    times: Knots
    """Times of the group itself; beyond the ends, the ratio at that end multiplies the model's times."""
    is_measured: bool
    """Whether this very group was timed; otherwise the times are carried over from others."""
    source: str


@dataclass(frozen=True, eq=False, kw_only=True)
class SweepBook:
    """Sweeps over the model, by what has to agree for a ratio to carry over, from strict to loose (``_loosened``)."""

    by_looseness: tuple[dict["Regime", tuple[GroupRatio, ...]], ...]


def correction(kind: CollectiveKind, placement: GroupPlacement, *, book: SweepBook) -> Correction | None:
    """Times of this kind of collective of this group by the sweeps; ``None`` when none was timed on such links."""
    groups, is_same = _groups_for(kind, placement, book)
    if not groups:
        return None
    log2_ratios, source = _at_size(groups, placement)
    times: list[tuple[float, float]] = []
    wire = _wire_byte_s(kind, placement)
    for position, log2_ratio in log2_ratios:
        num_bytes = 2**position
        modelled_s = best_candidate(kind, placement, num_bytes).time_s(num_bytes)
        duration_s = max(modelled_s * 2**log2_ratio, wire * num_bytes, 2 ** times[-1][1] if times else 0.0)
        times.append((position, log2(duration_s)))
    is_measured = is_same and any(group.size == placement.size and group.gpu_id == placement.gpu_id for group in groups)
    return Correction(times=tuple(times), is_measured=is_measured, source=source)


def at(knots: Knots, position: float) -> float:
    """Value at a position: linear between knots, constant beyond them."""
    if position <= knots[0][0]:
        return knots[0][1]
    for (left, low), (right, high) in pairwise(knots):
        if position <= right:
            return low + (high - low) * (position - left) / (right - left)
    return knots[-1][1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """The properties that two groups must share for a measured ratio to carry over from one to the other."""

    kind: CollectiveKind
    link: str
    """Type of the scale-up link; empty where every rank is alone in its domain."""
    crosses_host: bool
    ranks_per_host: int
    """Ranks on each host, for groups that span hosts; 0 for the others."""
    adds_in_switch: bool
    """Whether the switch adds, inside one domain; over several hosts NCCL takes rings for large messages either way."""
    fabric: str
    """rdma, sockets, or empty inside one host."""
    network_id: str
    arch: str


def _groups_for(
    kind: CollectiveKind, placement: GroupPlacement, book: SweepBook
) -> tuple[tuple[GroupRatio, ...], bool]:
    """The timed groups that meet over the same kind of links, and whether this collective was timed on this very part.

    Curves over message sizes are looked for first, on ever looser terms, lone readings only where there is no curve.
    Between hosts only the same network counts: the shape of another's curve is farther off than the model alone.
    """
    allowed = book.by_looseness[:1] if placement.num_hosts > 1 else book.by_looseness
    for wants_curve in (True, False):
        for looseness, known in enumerate(allowed):
            for stand_in in STAND_INS.get(kind, (kind,)):
                is_other = stand_in != kind
                found = known.get(_loosened(_regime(stand_in, placement, is_ring=is_other), looseness), ())
                usable = tuple(group for group in found if group.is_ring or not is_other)
                if looseness:
                    usable = tuple(_shape_of(group) for group in usable if len(group.log2_ratios) > 1)
                if any(len(group.log2_ratios) > 1 for group in usable) or (usable and not wants_curve):
                    return _one_per_size(usable, placement.gpu_id), looseness == 0 and not is_other
    return (), False


def _regime(kind: CollectiveKind, placement: GroupPlacement, *, is_ring: bool = False) -> Regime:
    spans = placement.num_hosts > 1
    adds_in_switch = kind == "all_reduce" and placement.uses_in_switch_reduction and not is_ring and not spans
    return Regime(
        kind=kind,
        link="" if placement.ranks_per_domain == 1 else placement.link,
        crosses_host=placement.num_domains > placement.num_hosts,
        ranks_per_host=placement.ranks_per_host if spans else 0,
        adds_in_switch=adds_in_switch,
        fabric=placement.fabric,
        network_id=placement.network_id,
        arch=placement.arch,
    )


def _loosened(regime: Regime, looseness: int) -> Regime:
    """0: the same part and network; 1: another network of the same kind; 2: also another part on the same links."""
    if looseness == 0:
        return regime
    return replace(regime, network_id="", arch=regime.arch if looseness == 1 else "")


def sweep_book(sweeps: Iterable[CollectiveSweep]) -> SweepBook:
    """Every usable sweep over the model; readings off charts are not used."""
    by_looseness: tuple[dict[Regime, list[GroupRatio]], ...] = ({}, {}, {})
    for sweep in sweeps:
        if sweep.confidence == "low" or not sweep.points:
            continue
        kind = sweep_kind(sweep)
        regime, group = _regime(kind, sweep_placement(sweep)), _group_ratio(kind, sweep)
        for looseness, found in enumerate(by_looseness):
            found.setdefault(_loosened(regime, looseness), []).append(group)
    return SweepBook(
        by_looseness=tuple({key: tuple(groups) for key, groups in found.items()} for found in by_looseness)
    )


def _group_ratio(kind: CollectiveKind, sweep: CollectiveSweep) -> GroupRatio:
    placement = sweep_placement(sweep)
    log2_ratios = []
    for point in sweep.points:
        modelled_s = best_candidate(kind, placement, point.num_bytes).time_s(point.num_bytes)
        log2_ratios.append((log2(point.num_bytes), log2(point.duration_s / modelled_s)))
    return GroupRatio(
        size=sweep.num_gpus,
        gpu_id=sweep.gpu_id,
        log2_ratios=tuple(log2_ratios),
        is_ring=best_candidate(kind, placement, sweep.points[-1].num_bytes).algorithm == "ring",
        source=sweep.source,
    )


def sweep_placement(sweep: CollectiveSweep) -> GroupPlacement:
    """Where the ranks of a sweep were."""
    return place_group(
        cluster=sweep.cluster, size=sweep.num_gpus, stride=1, has_in_switch_reduction=sweep.has_in_switch_reduction
    )


def sweep_kind(sweep: CollectiveSweep) -> CollectiveKind:
    """Which collective a sweep timed."""
    kinds: tuple[CollectiveKind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
    return next(kind for kind in kinds if kind == sweep.operation)


def _one_per_size(groups: Iterable[GroupRatio], gpu_id: str) -> tuple[GroupRatio, ...]:
    """The curve of this part where there is one, else the one of most points; lone readings rescale a neighbour's."""
    best: dict[int, GroupRatio] = {}
    for group in groups:
        before = best.get(group.size)
        if before is None or _merit(group, gpu_id) > _merit(before, gpu_id):
            best[group.size] = group
    curves = [group for group in best.values() if len(group.log2_ratios) > 1]
    return tuple(_rescaled(best[size], curves) for size in sorted(best))


def _shape_of(group: GroupRatio) -> GroupRatio:
    """The curve over its own plateau: how much further small messages fall behind the model than large ones."""
    plateau = group.log2_ratios[-1][1]
    return replace(group, log2_ratios=tuple((x, y - plateau) for x, y in group.log2_ratios))


def _merit(group: GroupRatio, gpu_id: str) -> tuple[bool, bool, int]:
    return len(group.log2_ratios) > 1, group.gpu_id == gpu_id, len(group.log2_ratios)


def _rescaled(group: GroupRatio, curves: Sequence[GroupRatio]) -> GroupRatio:
    """A lone reading given the shape of the nearest curve."""
    if len(group.log2_ratios) > 1 or not curves:
        return group
    nearest = min(curves, key=lambda curve: abs(log2(curve.size / group.size)))
    ((position, log2_ratio),) = group.log2_ratios
    shift = log2_ratio - at(nearest.log2_ratios, position)
    shape = tuple((x, y + shift) for x, y in nearest.log2_ratios if x < position)
    return replace(group, log2_ratios=(*shape, (position, log2_ratio)))


def _at_size(groups: Sequence[GroupRatio], placement: GroupPlacement) -> tuple[Knots, str]:
    """The ratios of this number of ranks: timed, between two timed numbers, or those of the nearest."""
    below = [group for group in groups if group.size <= placement.size]
    above = [group for group in groups if group.size >= placement.size]
    if not below or not above or below[-1].size == above[0].size:
        nearest = above[0] if above and (not below or above[0].size == placement.size) else below[-1]
        return nearest.log2_ratios, nearest.source
    low, high = below[-1], above[0]
    share = log2(placement.size / low.size) / log2(high.size / low.size)
    positions = sorted({x for x, _ in (*low.log2_ratios, *high.log2_ratios)})
    log2_ratios = tuple((x, (1 - share) * at(low.log2_ratios, x) + share * at(high.log2_ratios, x)) for x in positions)
    return log2_ratios, ";".join(dict.fromkeys((low.source, high.source)))


def _wire_byte_s(kind: CollectiveKind, placement: GroupPlacement) -> float:
    """Seconds a byte takes at the line rates of the links, which no measurement can beat."""
    ideal = replace(
        placement,
        inner_bandwidth_bytes_per_s=placement.inner_line_bytes_per_s,
        exchange_bandwidth_bytes_per_s=placement.inner_line_bytes_per_s,
        switch_bandwidth_bytes_per_s=placement.inner_line_bytes_per_s if placement.uses_in_switch_reduction else 0.0,
        network_bandwidth_bytes_per_s=placement.network_line_bytes_per_s,
        network_exchange_bytes_per_s=placement.network_line_bytes_per_s,
        network_message_bytes_per_s=placement.network_line_bytes_per_s,
    )
    return min(candidate.byte_s for candidate in candidates(kind, ideal))


@cache
def shipped_book() -> SweepBook:
    """The sweeps of the catalogue."""
    return sweep_book(load_collective_sweeps())
