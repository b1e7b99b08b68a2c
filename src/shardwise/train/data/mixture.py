"""Samples of several sources, and those that are held out of training: numbers are computed, nothing is stored."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from shardwise.train.data.samples import IGNORED_LABEL, Sample, Samples

__all__ = ["FilledUp", "HeldOut", "Joined", "Mixed", "Remaining"]

MAX_PERIOD = 1000
"""Weights are read as fractions of at most this denominator."""


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
    """Samples of several parts in fixed shares: an epoch ends when the part that lasts longest was seen once.

    Shorter parts begin again as often as their shares need. Shares hold in every period of a few samples, so they also
    hold without shuffling.
    """

    def __init__(self, parts: Sequence[Samples], weights: Sequence[float]) -> None:
        self._parts = tuple(parts)
        self._counts = counts_of(weights)
        self._period = interleaved(self._counts)
        self._turns = tuple(self._period[:slot].count(part) for slot, part in enumerate(self._period))
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
    """The smallest whole numbers in the ratio of the weights, each at least 1.

    >>> counts_of([0.7, 0.3]), counts_of([2, 1]), counts_of([0.5, 0.5])
    ((7, 3), (2, 1), (1, 1))
    """
    total = sum(weights)
    shares = [Fraction(weight / total).limit_denominator(MAX_PERIOD) for weight in weights]
    scale = lcm(*(share.denominator for share in shares))
    counts = [max(1, int(share * scale)) for share in shares]
    return tuple(count // gcd(*counts) for count in counts)


def interleaved(counts: Sequence[int]) -> tuple[int, ...]:
    """The part of every slot of one period, each spread evenly over it.

    >>> interleaved([3, 1])
    (0, 0, 1, 0)
    """
    places = [((turn + 0.5) / count, part) for part, count in enumerate(counts) for turn in range(count)]
    return tuple(part for _, part in sorted(places))


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
