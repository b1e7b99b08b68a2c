"""Samples: ``seq_len`` tokens to read, ``seq_len`` tokens to predict, and where documents begin.

Shapes: ``S`` is ``seq_len``. A label is the token that follows its input, so labels are already shifted and a sample
takes ``S + 1`` tokens. ``IGNORED_LABEL`` marks a label that is not counted.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from shardwise.errors import DataError
from shardwise.train.data.stream import TokenStream
from shardwise.train.job import Overlong

__all__ = ["IGNORED_LABEL", "FittedDocuments", "PackedStream", "Sample", "Samples", "SyntheticTokens", "require_known"]

IGNORED_LABEL = -100
"""The label that torch's cross-entropy leaves out by default."""

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One training sequence."""

    inputs: Integers
    """``(S,)``"""
    labels: Integers
    """``(S,)``"""
    positions: Integers
    """``(S,)``: place of each token in its own document, from 0; attention that knows this keeps documents apart."""


class Samples(Protocol):
    """Numbered samples, each of which can be made by itself."""

    @property
    def seq_len(self) -> int:
        """Tokens of a sample."""

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""

    @property
    def fingerprint(self) -> str:
        """Changes when any sample does."""

    def sample(self, number: int) -> Sample:
        """Sample ``number`` of an epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedStream:
    """Documents one after another, cut every ``seq_len`` tokens: nothing is padded, every token is predicted once.

    What is left at the end of the data and does not fill a sample is left out.
    """

    stream: TokenStream
    seq_len: int
    vocab_size: int
    crosses_documents: bool = False
    """Whether a document's first token is predicted from the document before it, and positions run on."""

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise too_few_tokens(self.stream.num_tokens, seq_len=self.seq_len)

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""
        return (self.stream.num_tokens - 1) // self.seq_len

    @property
    def fingerprint(self) -> str:
        """Changes when any sample does."""
        learned = "/targets" if self.stream.has_targets else ""
        return f"stream/{self.stream.fingerprint}/{self.seq_len}/{self.crosses_documents}{learned}"

    def sample(self, number: int) -> Sample:
        """Tokens ``number * S`` to ``(number + 1) * S`` and their successors."""
        start = number * self.seq_len
        tokens, documents = self.stream.read(start, start + self.seq_len + 1)
        require_known(tokens, vocab_size=self.vocab_size)
        inputs, labels = tokens[:-1], tokens[1:].copy()
        labels[~self.stream.is_target(start + 1, start + self.seq_len + 1)] = IGNORED_LABEL
        if self.crosses_documents:
            return Sample(inputs=inputs, labels=labels, positions=np.arange(self.seq_len, dtype=np.int64))
        labels[documents[1:] != documents[:-1]] = IGNORED_LABEL
        return Sample(inputs=inputs, labels=labels, positions=_positions(documents[:-1]))


class FittedDocuments:
    """Whole documents, packed so that few samples are padded, or one a sample.

    First-fit decreasing over lengths: the longest piece first, into the fullest sample it still fits. The plan of
    samples is held in memory, 24 bytes a piece.
    """

    def __init__(
        self,
        *,
        stream: TokenStream,
        seq_len: int,
        vocab_size: int,
        overlong: Overlong = "cut",
        is_packed: bool = True,
    ) -> None:
        self._stream = stream
        self._vocab_size = vocab_size
        self.seq_len = seq_len
        self.pieces = pieces_of(stream, seq_len=seq_len, overlong=overlong)
        self._starts, self._lengths = self.pieces.starts, self.pieces.lengths
        if not len(self._starts):
            raise too_short_documents()
        self._bins = _fit(self._lengths, capacity=seq_len) if is_packed else [[n] for n in range(len(self._starts))]
        kind = ("documents" if is_packed else "rows", overlong if overlong != "cut" else "")
        learned = "/targets" if stream.has_targets else ""
        self._kind = f"{'/'.join(filter(None, kind))}/{stream.fingerprint}/{seq_len}{learned}"

    @property
    def num_samples(self) -> int:
        """Samples of one epoch."""
        return len(self._bins)

    @property
    def fingerprint(self) -> str:
        """Changes when any sample does."""
        return self._kind

    def sample(self, number: int) -> Sample:
        """The pieces of one sample one after another, then padding whose labels are ignored."""
        inputs = np.zeros(self.seq_len, dtype=np.int64)
        labels = np.full(self.seq_len, IGNORED_LABEL, dtype=np.int64)
        positions = np.arange(self.seq_len, dtype=np.int64)
        filled = 0
        for piece in self._bins[number]:
            start, length = int(self._starts[piece]), int(self._lengths[piece])
            tokens, _ = self._stream.read(start, start + length + 1)
            require_known(tokens, vocab_size=self._vocab_size)
            inside = slice(filled, filled + length)
            is_target = self._stream.is_target(start + 1, start + length + 1)
            inputs[inside], labels[inside] = tokens[:-1], np.where(is_target, tokens[1:], IGNORED_LABEL)
            positions[inside] = np.arange(length)
            filled += length
        positions[filled:] -= filled
        return Sample(inputs=inputs, labels=labels, positions=positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticTokens:
    """Made-up tokens for benchmarks: any number of them, the same for a seed, read from nowhere.

    Token ``t`` comes up about as often as ``1 / (t + 1)``, as words do in text (Zipf's law), so a loss curve falls
    from ``ln(vocab_size)`` and rows of the embedding are hit as unevenly as by text.
    """

    seq_len: int
    vocab_size: int
    seed: int = 0
    num_samples: int = 1 << 40

    @property
    def fingerprint(self) -> str:
        """Changes when any sample does."""
        return f"synthetic/{self.vocab_size}/{self.seq_len}/{self.seed}"

    def sample(self, number: int) -> Sample:
        """Independent draws from one generator per sample."""
        generator = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, 0, number]))
        uniform = generator.random(self.seq_len + 1)
        tokens = np.minimum((self.vocab_size + 1.0) ** uniform, self.vocab_size).astype(np.int64) - 1
        return Sample(inputs=tokens[:-1], labels=tokens[1:].copy(), positions=np.arange(self.seq_len, dtype=np.int64))


def _positions(documents: Integers) -> Integers:
    """Place of every token in its document: 0, 1, 2, ... from each beginning."""
    places = np.arange(len(documents), dtype=np.int64)
    begins = np.concatenate([[True], documents[1:] != documents[:-1]])
    return places - np.maximum.accumulate(np.where(begins, places, 0))


def require_known(tokens: npt.NDArray[np.integer], *, vocab_size: int) -> None:
    """Return when the model has a row for every token.

    Raises:
        DataError: one is beyond its vocabulary.
    """
    smallest, largest = int(tokens.min()), int(tokens.max())
    if largest >= vocab_size or smallest < 0:
        raise DataError(
            f"the data hold token {largest if largest >= vocab_size else smallest}, but the model knows only tokens "
            f"0 to {vocab_size - 1}",
            code="data-vocabulary",
            fix="tokenise with the model's own tokenizer, or use a model with a larger vocab_size",
        )


def too_few_tokens(num_tokens: int, *, seq_len: int) -> DataError:
    """Data that do not fill one sample."""
    return DataError(
        f"the data have {num_tokens:,} tokens, and one sample takes {seq_len + 1:,}",
        code="data-too-short",
        fix=f"give more text, or set seq_len to at most {max(1, num_tokens - 1)}",
    )


def too_short_documents() -> DataError:
    """Documents none of which has a token that follows another."""
    return DataError(
        "no document has two tokens, so there is nothing to predict",
        code="data-too-short",
        fix="give longer documents",
    )


class Pieces(NamedTuple):
    """The parts of documents that samples are made of, and what no sample holds."""

    starts: Integers
    """First token of every piece."""
    lengths: Integers
    """Predicted tokens of every piece."""
    num_overlong: int
    """Documents with more predicted tokens than a sample has."""
    num_left_out: int
    """Tokens of these that no sample holds."""
    num_unlearned: int
    """Pieces that are left out because no token of theirs is learned."""


def pieces_of(stream: TokenStream, *, seq_len: int, overlong: Overlong) -> Pieces:
    """The pieces of every document, in order; ``overlong`` says what becomes of documents longer than a sample."""
    lengths = stream.document_lengths()
    starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])[:-1]
    predicted = np.maximum(lengths - 1, 0)
    is_overlong = predicted > seq_len
    if overlong != "cut":
        predicted = np.where(is_overlong, seq_len if overlong == "truncate" else 0, predicted)
    num_pieces = -(-predicted // seq_len)
    within = np.arange(num_pieces.sum(), dtype=np.int64) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
    piece_starts = np.repeat(starts, num_pieces) + within * seq_len
    piece_lengths = np.minimum(np.repeat(predicted, num_pieces) - within * seq_len, seq_len)
    learned = _num_targets(stream, piece_starts, piece_lengths) > 0
    used = np.where(predicted > 0, predicted + 1, 0)
    return Pieces(
        starts=piece_starts[learned],
        lengths=piece_lengths[learned],
        num_overlong=int(is_overlong.sum()),
        num_left_out=int((lengths - used)[is_overlong].sum()),
        num_unlearned=int((~learned).sum()),
    )


def _num_targets(stream: TokenStream, starts: Integers, lengths: Integers) -> Integers:
    """Tokens that each piece learns; a piece predicts the tokens after its first."""
    if not stream.has_targets or not len(starts):
        return lengths
    is_target = np.append(stream.is_target(0, stream.num_tokens), False)
    edges = np.stack([starts + 1, starts + 1 + lengths], axis=1).ravel()
    return np.add.reduceat(is_target, edges, dtype=np.int64)[::2]


def _fit(lengths: Integers, *, capacity: int) -> list[list[int]]:
    """Pieces of every sample: each piece goes to the fullest sample that still has room, longest first."""
    by_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    occupied = _RoomIndex(capacity + 1)
    bins: list[list[int]] = []
    for piece in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[piece])
        room = occupied.first_at_least(length)
        if room is None:
            room = capacity
            bins.append([])
            by_room[room].append(len(bins) - 1)
            occupied.add(room)
        chosen = by_room[room].pop()
        if not by_room[room]:
            occupied.remove(room)
        bins[chosen].append(piece)
        by_room[room - length].append(chosen)
        occupied.add(room - length)
    return bins


class _RoomIndex:
    """A set of small numbers that finds its smallest member from a bound on, in one big-integer step."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._bits = 0

    def add(self, number: int) -> None:
        self._bits |= 1 << number

    def remove(self, number: int) -> None:
        self._bits &= ~(1 << number)

    def first_at_least(self, bound: int) -> int | None:
        above = self._bits >> bound
        return (above & -above).bit_length() - 1 + bound if above else None
