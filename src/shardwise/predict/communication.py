"""Time of one collective call: by the calibration's tables, else by the shipped sweeps, else by NCCL's model alone.

Within the sizes that were timed, their time is the answer (for another number of ranks it is carried over); beyond
them the ratio of measured to modelled time at the nearest one scales NCCL's model.

``place_group`` says where a group's ranks lie, ``collective_curve`` how long its calls of one kind take, whatever
their size. Both are worth keeping: a curve is a pure function of bytes.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import log2
from typing import Literal

from shardwise.predict.calibrated_groups import arrival_wait_s, calibrated_correction, communication_ratio
from shardwise.predict.collective_correction import Correction, SweepBook, at, correction, shipped_book
from shardwise.predict.group_placement import GroupPlacement
from shardwise.predict.nccl_protocols import ProtocolName
from shardwise.predict.nccl_tuner import Algorithm, Candidate, candidates
from shardwise.step.inventory import Collective, CollectiveKind, ExpertChoice
from shardwise.units import Seconds

Basis = Literal["measured", "scaled", "modelled"]
"""Timed on such a group, carried over from other groups or sizes on the same links, or NCCL's model alone."""
FADING_OCTAVES = 4
"""Below the smallest timed message the correction fades, to none at a sixteenth of it: NCCL's latencies are measured
ones (8 bytes on 8 H100 take 12.9 us, its model says 15)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedCall:
    """The algorithm and protocol that NCCL chooses for one call, its limit, and the source of its time."""

    algorithm: Algorithm
    protocol: ProtocolName
    bottleneck: str
    """``latency``, or the link that takes longest: NVLink, xGMI, PCIe, network."""
    basis: Basis
    source: str = ""
    """Where the measurements that corrected the time come from; empty when it is the model's alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCurve:
    """Calls of one kind of collective of one group, by their bytes."""

    candidates: tuple[Candidate, ...]
    correction: Correction | None = None

    def time_s(self, num_bytes: float) -> Seconds:
        """Time of one call in a loop of nothing else, as sweeps time it."""
        modelled_s = min(candidate.time_s(num_bytes) for candidate in self.candidates)
        return modelled_s if self.correction is None else self._corrected_s(num_bytes, modelled_s, self.correction)

    def call(self, num_bytes: float) -> TunedCall:
        """The algorithm and protocol that NCCL's model finds fastest, and what limits them."""
        chosen = min(self.candidates, key=lambda candidate: candidate.time_s(num_bytes))
        waits = chosen.latency_s > chosen.moving_s(num_bytes)
        return TunedCall(
            algorithm=chosen.algorithm,
            protocol=chosen.protocol,
            bottleneck="latency" if waits else chosen.link,
            basis=self._basis(num_bytes),
            source=self.correction.source if self.correction else "",
        )

    def _corrected_s(self, num_bytes: float, modelled_s: Seconds, found: Correction) -> Seconds:
        position, knots = log2(max(num_bytes, 1)), found.times
        if knots[0][0] <= position <= knots[-1][0]:
            return float(2 ** at(knots, position))
        end, log_time = knots[0] if position < knots[0][0] else knots[-1]
        log2_ratio = log_time - log2(min(candidate.time_s(2**end) for candidate in self.candidates))
        if position < end and log2_ratio > 0:
            log2_ratio *= max(0.0, 1 - (end - position) / FADING_OCTAVES)
        return float(modelled_s * 2**log2_ratio)

    def _basis(self, num_bytes: float) -> Basis:
        if self.correction is None:
            return "modelled"
        knots = self.correction.times
        is_inside = knots[0][0] <= log2(max(num_bytes, 1)) <= knots[-1][0]
        return "measured" if self.correction.is_measured and is_inside else "scaled"


@lru_cache(maxsize=4096)
def collective_curve(
    kind: CollectiveKind, placement: GroupPlacement, sent_once: ExpertChoice | None = None
) -> CollectiveCurve:
    """Times of one kind of collective of a group of at least two ranks, by the shipped sweeps."""
    return curve_by(kind, placement, sent_once=sent_once, book=shipped_book())


def curve_by(
    kind: CollectiveKind, placement: GroupPlacement, *, book: SweepBook, sent_once: ExpertChoice | None = None
) -> CollectiveCurve:
    """Times of one kind of collective of a group, by the sweeps of a book, which may be empty."""
    sends_once = sent_once is not None and placement.num_hosts > 1
    return CollectiveCurve(
        candidates=candidates(kind, placement, sent_once),
        correction=None
        if sends_once
        else calibrated_correction(kind, placement) or correction(kind, placement, book=book),
    )


def collective_time_s(collective: Collective, *, placement: GroupPlacement) -> Seconds:
    """Time of one call of a step when nothing else uses the links.

    It is the curve's time with the wait for ranks that arrive late, times what runs taught about the axis.
    """
    if placement.size <= 1:
        return 0.0
    learned_ratio = communication_ratio(collective.axis, placement.calibration)
    curve = collective_curve(collective.kind, placement, collective.sent_once)
    return learned_ratio * (curve.time_s(collective.num_bytes) + arrival_wait_s(placement))


def collective_call(collective: Collective, *, placement: GroupPlacement) -> TunedCall:
    """The algorithm and protocol that NCCL chooses for one call of two ranks or more, and the limit of its time."""
    return collective_curve(collective.kind, placement, collective.sent_once).call(collective.num_bytes)
