"""The order in which samples are seen: a keyed permutation that is computed, never stored."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["SampleOrder"]

Integers = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

NUM_ROUNDS = 6
"""Four rounds make a Feistel network of good round functions a strong pseudorandom permutation (Luby and Rackoff 1988);
ours are cheap hashes, so two more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOrder:
    """Which sample stands at each position of an endless training run.

    Position ``k`` lies in epoch ``k // num_samples``; every epoch holds every sample once, in another order. Nothing is
    stored: the permutation is a Feistel network keyed by seed and epoch, walked until it lands inside the range
    (Black and Rogaway 2002, "Ciphers with arbitrary finite domains", method 2), so a data set of any size costs no
    memory and any position can be computed by itself.

    >>> order = SampleOrder(num_samples=5, seed=1)
    >>> sorted(order.samples_at(np.arange(5)).tolist())
    [0, 1, 2, 3, 4]
    """

    num_samples: int
    seed: int = 0
    is_shuffled: bool = True

    def epoch_of(self, position: int) -> int:
        """How many times the whole data had been seen before this position."""
        return position // self.num_samples

    def samples_at(self, positions: npt.ArrayLike) -> Integers:
        """Sample numbers at the given positions."""
        places = np.asarray(positions, dtype=np.int64)
        slots = places % self.num_samples
        if not self.is_shuffled:
            return slots
        epochs = places // self.num_samples
        samples = np.empty_like(slots)
        for epoch in np.unique(epochs):
            inside = epochs == epoch
            samples[inside] = self._shuffled(slots[inside], epoch=int(epoch))
        return samples

    def _shuffled(self, slots: Integers, *, epoch: int) -> Integers:
        half_bits = _half_bits(self.num_samples)
        keys = _round_keys(seed=self.seed, epoch=epoch)
        words = _feistel(slots.astype(np.uint64), half_bits=half_bits, keys=keys)
        outside = words >= np.uint64(self.num_samples)
        while outside.any():
            words[outside] = _feistel(words[outside], half_bits=half_bits, keys=keys)
            outside = words >= np.uint64(self.num_samples)
        return words.astype(np.int64)


def _half_bits(num_samples: int) -> int:
    """Bits of one half of the network's words: the smallest that can number every sample."""
    return max(1, (max(num_samples - 1, 1).bit_length() + 1) // 2)


def _round_keys(*, seed: int, epoch: int) -> _Words:
    generator = np.random.SeedSequence([seed & 0xFFFFFFFFFFFFFFFF, epoch])
    return generator.generate_state(NUM_ROUNDS, dtype=np.uint64).astype(np.uint64)


def _feistel(words: _Words, *, half_bits: int, keys: _Words) -> _Words:
    """A permutation of the words of ``2 * half_bits`` bits."""
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = words >> shift, words & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << shift) | right


def _mixed(words: _Words) -> _Words:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every input bit moves every output bit."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
