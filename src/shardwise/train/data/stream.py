"""Files of tokens as one long stream, read anywhere without loading it."""

import hashlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from shardwise.train.data.indexed_tokens import IndexedTokens

__all__ = ["TokenStream"]

FINGERPRINT_TOKENS = 4096
"""Tokens at either end of a file that its fingerprint is made of, with the counts; reading all would take too long."""

PIECE_TOKENS = 1 << 16
"""Tokens that are looked at together."""


class TokenStream:
    """The tokens of several files one after another, with the document each belongs to."""

    def __init__(self, files: Sequence[IndexedTokens], *, learns_all: bool = False) -> None:
        self._files = tuple(files)
        self.has_targets = not learns_all and any(file.is_target is not None for file in files)
        """Whether some tokens are read and not learned."""
        self._starts = np.cumsum([0, *(file.num_tokens for file in files)], dtype=np.int64)
        self._first_documents = np.cumsum([0, *(file.num_documents for file in files)], dtype=np.int64)

    @property
    def num_tokens(self) -> int:
        """Tokens of all files."""
        return int(self._starts[-1])

    @property
    def num_documents(self) -> int:
        """Documents of all files."""
        return int(self._first_documents[-1])

    @property
    def num_targets(self) -> int:
        """Tokens of all files that are learned."""
        if not self.has_targets:
            return self.num_tokens
        return sum(
            file.num_tokens if file.is_target is None else int(file.is_target.sum(dtype=np.int64))
            for file in self._files
        )

    @property
    def fingerprint(self) -> str:
        """Changes with the number of tokens or documents, and with the tokens at either end of any file."""
        digest = hashlib.sha256()
        for file in self._files:
            ends = (file.tokens[:FINGERPRINT_TOKENS], file.tokens[-FINGERPRINT_TOKENS:])
            digest.update(f"{file.num_tokens}/{file.num_documents}/".encode())
            digest.update(b"".join(end.astype("<i8").tobytes() for end in ends))
            if self.has_targets and file.is_target is not None:
                digest.update(
                    file.is_target[:FINGERPRINT_TOKENS].tobytes() + file.is_target[-FINGERPRINT_TOKENS:].tobytes()
                )
        return digest.hexdigest()[:16]

    def read(self, start: int, stop: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Tokens ``start`` to ``stop`` and the number of the document each belongs to."""
        tokens = np.empty(stop - start, dtype=np.int64)
        documents = np.empty(stop - start, dtype=np.int64)
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        last = int(np.searchsorted(self._starts, stop, side="left"))
        for number in range(first, last):
            begin = max(start, int(self._starts[number]))
            end = min(stop, int(self._starts[number + 1]))
            if begin < end:
                offset = int(self._starts[number])
                inside = slice(begin - start, end - start)
                tokens[inside] = self._files[number].tokens[begin - offset : end - offset]
                documents[inside] = self._documents_of(number, begin - offset, end - offset)
        return tokens, documents

    def is_target(self, start: int, stop: int) -> npt.NDArray[np.bool_]:
        """Which of the tokens ``start`` to ``stop`` are learned."""
        found = np.ones(stop - start, dtype=np.bool_)
        for file, first in zip(self._files, self._starts[:-1].tolist(), strict=True):
            begin, end = max(start, first), min(stop, first + file.num_tokens)
            if self.has_targets and file.is_target is not None and begin < end:
                found[begin - start : end - start] = file.is_target[begin - first : end - first]
        return found

    def sampled(self, max_tokens: int) -> Iterator[npt.NDArray[np.integer]]:
        """Every token in pieces; pieces spread evenly over all where there are more than ``max_tokens``."""
        for file in self._files:
            num_pieces = -(-file.num_tokens // PIECE_TOKENS)
            num_wanted = -(-max_tokens * file.num_tokens // (PIECE_TOKENS * max(1, self.num_tokens)))
            for piece in range(0, num_pieces, max(1, -(-num_pieces // max(1, num_wanted)))):
                yield file.tokens[piece * PIECE_TOKENS : (piece + 1) * PIECE_TOKENS]

    def document_lengths(self) -> npt.NDArray[np.int64]:
        """Length of every document, in order: eight bytes per document."""
        lengths = [np.diff(file.document_starts) for file in self._files]
        return np.concatenate(lengths) if lengths else np.empty(0, dtype=np.int64)

    def _documents_of(self, number: int, begin: int, end: int) -> npt.NDArray[np.int64]:
        starts = self._files[number].document_starts
        first = int(np.searchsorted(starts, begin, side="right")) - 1
        last = int(np.searchsorted(starts, end, side="left"))
        edges = np.clip(starts[first : last + 1], begin, end)
        names = np.arange(first, last, dtype=np.int64) + int(self._first_documents[number])
        return np.repeat(names, np.diff(edges))
