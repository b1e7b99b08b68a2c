"""Samples of several sources, and those that are held out of training: numbers are computed, nothing is stored."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.train.data.samples import IGNORED_LABEL, Sample, Samples

__all__ = ["MAX_PERIOD", "FilledUp", "HeldOut", "Joined", "Mixed", "Remaining"]

MAX_PERIOD = 10_000
"""Most samples within which the shares of all parts come true; a smaller share than one of these is none."""
SHORT_PERIOD = 1_000
"""Longer periods are for weights that no period up to this one comes close to, as an epoch is whole periods."""
EXACT, CLOSE = 1e-9, 1e-3
"""How far a share may be off, relative to itself, to be the same and to be close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Samples of several parts one part after another: an epoch has every sample of every part once."""

    parts: tuple[Samples, ...]

    @property
    def seq_len(self) -> int:
        """Tokens of a sample."""
        return self.parts[0].seq_len

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""
        return sum(part.num_samples for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """Changes when any sample does."""
        return " + ".join(part.fingerprint for part in self.parts)

    def sample(self, number: int) -> Sample:
        """Sample ``number``, counted through the parts."""
        for part in self.parts[:-1]:
            if number < part.num_samples:
                return part.sample(number)
            number -= part.num_samples
        return self.parts[-1].sample(number)


class Mixed:
    """Samples of several parts in fixed shares: an epoch ends with the period in which the longest part was seen once.

    Shorter parts begin again as often as their shares need. Shares hold in every period, so they also hold without
    shuffling.
    """

    def __init__(self, parts: Sequence[Samples], weights: Sequence[float]) -> None:
        self._parts = tuple(parts)
        self._counts = counts_of(weights)
        self._period = interleaved(self._counts)
        self._turns = turns_of(self._period)
        """For each slot, how many slots of the period before it have the same part."""
        self._num_periods = max(
            -(-part.num_samples // count) for part, count in zip(self._parts, self._counts, strict=True)
        )

    @property
    def seq_len(self) -> int:
        """Tokens of a sample."""
        return self._parts[0].seq_len

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""
        return self._num_periods * len(self._period)

    @property
    def fingerprint(self) -> str:
        """Changes when any sample does."""
        shares = zip(self._counts, self._parts, strict=True)
        return " + ".join(f"{count} x {part.fingerprint}" for count, part in shares)

    def sample(self, number: int) -> Sample:
        """Sample ``number`` of an epoch."""
        period, slot = divmod(number, len(self._period))
        chosen = self._period[slot]
        part = self._parts[chosen]
        return part.sample((period * self._counts[chosen] + self._turns[slot]) % part.num_samples)


def counts_of(weights: Sequence[float]) -> tuple[int, ...]:
    """Samples of each part in the period that comes nearest to the weights, a short one where it is close.

    >>> counts_of([0.7, 0.3]), counts_of([0.3333, 0.6667]), counts_of([0.9999, 0.0001])
    ((7, 3), (1, 2), (9999, 1))
    """
    shares = np.asarray(weights, dtype=np.float64) / sum(weights)
    wanted = np.outer(np.arange(1, MAX_PERIOD + 1), shares)
    errors = np.abs(np.rint(wanted) / wanted - 1).max(axis=1)
    nearest = errors[:SHORT_PERIOD].min()
    if nearest >= CLOSE:
        nearest = errors.min()
    return tuple(int(count) for count in np.rint(wanted[np.flatnonzero(errors <= nearest + EXACT)[0]]))


def interleaved(counts: Sequence[int]) -> tuple[int, ...]:
    """The part of every slot of one period, each spread evenly over it.

    >>> interleaved([3, 1])
    (0, 0, 1, 0)
    """
    places = [((turn + 0.5) / count, part) for part, count in enumerate(counts) for turn in range(count)]
    return tuple(part for _, part in sorted(places))


def turns_of(period: Sequence[int]) -> tuple[int, ...]:
    """For each slot of a period, how many slots before it have the same part.

    >>> turns_of((0, 0, 1, 0))
    (0, 1, 0, 2)
    """
    seen: Counter[int] = Counter()
    turns = []
    for part in period:
        turns.append(seen[part])
        seen[part] += 1
    return tuple(turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Derived:
    """A base for samples that are made from one other source: they have its length, and change when it does."""

    samples: Samples

    @property
    def seq_len(self) -> int:
        """Tokens of a sample."""
        return self.samples.seq_len

    @property
    def fingerprint(self) -> str:
        """Changes when any sample does."""
        return self.samples.fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut(_Derived):
    """Every ``num_in_period``-th sample: evenly spread, as samples may lie in the order of their lengths or sources."""

    num_in_period: int

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""
        return self.samples.num_samples // self.num_in_period

    @property
    def fingerprint(self) -> str:
        """Changes when any sample does."""
        return f"1 of {self.num_in_period} of {self.samples.fingerprint}"

    def sample(self, number: int) -> Sample:
        """The last sample of period ``number``."""
        return self.samples.sample((number + 1) * self.num_in_period - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining(_Derived):
    """The samples that :class:`HeldOut` leaves to train on."""

    num_in_period: int

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""
        return self.samples.num_samples - self.samples.num_samples // self.num_in_period

    @property
    def fingerprint(self) -> str:
        """Changes when any sample does."""
        return f"all but 1 of {self.num_in_period} of {self.samples.fingerprint}"

    def sample(self, number: int) -> Sample:
        """Sample ``number`` of those that are left."""
        period, slot = divmod(number, self.num_in_period - 1)
        return self.samples.sample(period * self.num_in_period + slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledUp(_Derived):
    """Samples followed by empty ones without labels, as many as make their number a multiple of ``num_together``."""

    num_together: int

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""
        return -(-self.samples.num_samples // self.num_together) * self.num_together

    def sample(self, number: int) -> Sample:
        """Sample ``number``; beyond the last real one, an empty sample without labels."""
        if number < self.samples.num_samples:
            return self.samples.sample(number)
        empty = np.zeros(self.seq_len, dtype=np.int64)
        return Sample(inputs=empty, labels=np.full_like(empty, IGNORED_LABEL), positions=np.arange(self.seq_len))
