"""A batch of sequences, and the part of it that each data-parallel rank reads in each micro-batch."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.course.numerics.arrays import Integers
from shardwise.course.numerics.vocabulary import IGNORED
from shardwise.errors import RecipeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Sequences and what is to be learned from them."""

    tokens_BS: Integers
    labels_BS: Integers
    """The next tokens; ``IGNORED`` where nothing is learned, so that sequences weigh differently."""

    @property
    def num_learned_tokens(self) -> int:
        """Tokens that count in the loss: what its sum is divided by."""
        return int((self.labels_BS != IGNORED).sum())

    def rows(self, first: int, last: int) -> "Batch":
        """Some of the sequences."""
        return Batch(tokens_BS=self.tokens_BS[first:last], labels_BS=self.labels_BS[first:last])


def random_batch(
    *, num_sequences: int, seq_len: int, vocab_size: int, seed: int = 1, ignored_fraction: float = 0.3
) -> Batch:
    """Random tokens; in each sequence another share of labels is ignored, so that token counts differ."""
    random = np.random.default_rng(seed)
    tokens_BS = random.integers(0, vocab_size, size=(num_sequences, seq_len + 1))
    shares_B1 = random.uniform(0, 2 * ignored_fraction, size=(num_sequences, 1))
    is_ignored_BS = random.uniform(size=(num_sequences, seq_len)) < shares_B1
    labels_BS = np.where(is_ignored_BS, IGNORED, tokens_BS[:, 1:])
    labels_BS[:, 0] = tokens_BS[:, 1]
    return Batch(tokens_BS=tokens_BS[:, :-1], labels_BS=labels_BS)


def divide(batch: Batch, shares: Sequence[Sequence[int]]) -> tuple[tuple[Batch, ...], ...]:
    """The micro-batches of every data-parallel rank.

    Args:
        batch: all sequences of the step.
        shares: of every rank, the sequences of each of its micro-batches; they may be uneven.

    Raises:
        RecipeError: the shares are not the batch.
    """
    total = sum(map(sum, shares))
    if total != len(batch.tokens_BS) or min(map(min, shares)) < 1:
        raise RecipeError(
            f"shares of {[list(share) for share in shares]} sequences are not a batch of {len(batch.tokens_BS)}",
            code="simulate-batch",
            fix=f"give every micro-batch at least one sequence, {len(batch.tokens_BS)} in all",
        )
    parts, first = [], 0
    for share in shares:
        micro_batches = []
        for count in share:
            micro_batches.append(batch.rows(first, first + count))
            first += count
        parts.append(tuple(micro_batches))
    return tuple(parts)


def even_shares(*, num_sequences: int, data_parallel_size: int, num_microbatches: int) -> tuple[tuple[int, ...], ...]:
    """Shares as even as they can be, the first ones larger.

    >>> even_shares(num_sequences=7, data_parallel_size=2, num_microbatches=2)
    ((2, 2), (2, 1))
    """
    pieces = data_parallel_size * num_microbatches
    base, extra = divmod(num_sequences, pieces)
    counts = [base + (index < extra) for index in range(pieces)]
    return tuple(
        tuple(counts[rank * num_microbatches : (rank + 1) * num_microbatches]) for rank in range(data_parallel_size)
    )
