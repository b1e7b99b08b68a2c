"""Tokens on disk: the ``.bin``/``.idx`` pair that Megatron-LM, NeMo and nanotron read as well.

``NAME.bin`` holds the token numbers of every document one after another, little-endian, nothing else. ``NAME.idx``
says where documents begin: the magic ``MMIDIDX\\0\\0``, version 1 (u64), a dtype code (u8), the number of sequences and
of documents plus one (u64 each), then the length of every sequence in tokens (i32), its place in ``.bin`` in bytes
(i64), and for every document the number of its first sequence (i64, closed by the number of sequences).

``NAME.targets`` stands beside them where not every token is learned: one byte a token, 1 for those that are. It is ours
alone; without it all are learned.

Source of the layout: Megatron-LM ``megatron/core/datasets/indexed_dataset.py``.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from shardwise.errors import DataError

__all__ = ["IndexedTokens", "TokenWriter", "read_indexed_tokens", "token_dtype"]

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
DTYPES: dict[int, np.dtype[np.generic]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    8: np.dtype("<u2"),
}
"""Megatron's dtype codes that can hold token numbers; 6 and 7 are floating point."""
CODES = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedTokens:
    """One file of tokens and where its documents begin, both mapped from disk."""

    name: str
    tokens: npt.NDArray[np.integer]
    document_starts: npt.NDArray[np.int64]
    """First token of every document, in tokens; the number of tokens closes the list."""
    is_target: npt.NDArray[np.uint8] | None = None
    """Which tokens are learned; ``None`` learns all."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the file."""
        return len(self.tokens)

    @property
    def num_documents(self) -> int:
        """Documents of the file."""
        return len(self.document_starts) - 1


def token_dtype(vocab_size: int) -> np.dtype[np.generic]:
    """The smallest type that numbers a vocabulary: two bytes, or four."""
    return DTYPES[8] if vocab_size <= 1 << 16 else DTYPES[4]


def read_indexed_tokens(stem: Path) -> IndexedTokens:
    """Map ``stem.bin`` and ``stem.idx``; only the index of documents is checked, the tokens stay on disk."""
    try:
        return _mapped(stem)
    except OSError as error:
        raise DataError(
            f"{error.filename or stem} cannot be read: {error.strerror or error}",
            code="data-unreadable",
            fix="allow the files of tokens to be read",
        ) from error


def _mapped(stem: Path) -> IndexedTokens:
    index_path, tokens_path = stem.with_name(f"{stem.name}.idx"), stem.with_name(f"{stem.name}.bin")
    missing = next((path for path in (index_path, tokens_path) if not path.is_file()), None)
    if missing is not None:
        raise DataError(
            f"tokens need both {tokens_path.name} and {index_path.name}, and {missing} is not there",
            code="data-tokens",
            fix="copy the missing half beside the other, or tokenise the text again",
        )
    dtype, lengths, documents = _read_index(index_path)
    num_tokens = int(lengths.sum(dtype=np.int64))
    size_bytes = tokens_path.stat().st_size
    if size_bytes != num_tokens * dtype.itemsize:
        raise DataError(
            f"{tokens_path} has {size_bytes:,} bytes, but its index promises {num_tokens:,} tokens of "
            f"{dtype.itemsize} bytes",
            code="data-tokens",
            fix="copy the file again: it was cut short, or belongs to another index",
        )
    ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
    tokens: npt.NDArray[np.integer] = (
        np.memmap(tokens_path, dtype=dtype, mode="r") if num_tokens else np.empty(0, dtype=dtype)
    )
    return IndexedTokens(
        name=str(tokens_path),
        tokens=tokens,
        document_starts=ends[documents],
        is_target=_mapped_targets(stem, num_tokens),
    )


def _mapped_targets(stem: Path, num_tokens: int) -> npt.NDArray[np.uint8] | None:
    path = stem.with_name(f"{stem.name}.targets")
    if not path.is_file() or not num_tokens:
        return None
    if path.stat().st_size != num_tokens:
        raise DataError(
            f"{path} has {path.stat().st_size:,} bytes, one for each of {num_tokens:,} tokens are needed",
            code="data-tokens",
            fix="tokenise the text again: the file was cut short, or belongs to other tokens",
        )
    return np.memmap(path, dtype=np.uint8, mode="r")


def _read_index(path: Path) -> tuple[np.dtype[np.generic], npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    """Token type, length of every sequence, and the first sequence of every document."""
    with path.open("rb") as file:
        head = file.read(HEADER.size)
        if len(head) < HEADER.size or not head.startswith(MAGIC):
            raise DataError(
                f"{path} does not begin as an index of tokens does",
                code="data-tokens",
                fix="give files written by shardwise tokenize or by Megatron-LM's preprocess_data.py",
            )
        _, version, code, num_sequences, num_documents = HEADER.unpack(head)
        if version != VERSION or code not in DTYPES:
            raise DataError(
                f"{path} is of version {version} with dtype code {code}; version {VERSION} with codes "
                f"{', '.join(str(known) for known in DTYPES)} can be read",
                code="data-tokens",
                fix="tokenise the text again",
            )
        promised_bytes = HEADER.size + (4 + 8) * num_sequences + 8 * num_documents
        if path.stat().st_size < promised_bytes or not num_documents:
            raise _cut_short(path)
        lengths = np.fromfile(file, dtype="<i4", count=num_sequences)
        file.seek(8 * num_sequences, 1)
        documents = np.fromfile(file, dtype="<i8", count=num_documents)
    is_in_order = documents[0] >= 0 and documents[-1] <= num_sequences and bool((np.diff(documents) >= 0).all())
    if not is_in_order or bool((lengths < 0).any()):
        raise DataError(
            f"{path} is damaged: it has documents out of order, or of less than no tokens",
            code="data-tokens",
            fix="copy the file again",
        )
    return DTYPES[code], lengths, documents


def _cut_short(path: Path) -> DataError:
    return DataError(f"{path} was cut short", code="data-tokens", fix="copy the file again")


class TokenWriter:
    """Writes documents to a ``.bin``/``.idx`` pair; the index is written when it is closed."""

    def __init__(self, stem: Path, *, dtype: np.dtype[np.generic]) -> None:
        self._stem = stem
        self._dtype = dtype
        self._lengths: list[int] = []
        self.num_tokens = 0
        """Tokens written so far."""
        self.num_targets = 0
        """Tokens written so far that are learned."""
        self._file: BinaryIO = stem.with_name(f"{stem.name}.bin").open("wb")
        self._targets: BinaryIO = stem.with_name(f"{stem.name}.targets").open("wb")

    @property
    def num_documents(self) -> int:
        """Documents written so far."""
        return len(self._lengths)

    def add(self, documents: Iterable[npt.ArrayLike], targets: Iterable[npt.NDArray[np.bool_] | None] = ()) -> None:
        """Append documents, and which tokens of each are learned (``None``: all); empty ones are left out."""
        for document, is_target in zip_longest(documents, targets):
            tokens = np.asarray(document).astype(self._dtype)
            if len(tokens):
                learned = np.ones(len(tokens), dtype=np.uint8) if is_target is None else is_target.astype(np.uint8)
                self._targets.write(learned.tobytes())
                self.num_targets += int(learned.sum())
                self._file.write(tokens.tobytes())
                self._lengths.append(len(tokens))
                self.num_tokens += len(tokens)

    def close(self) -> None:
        """Write the index beside the tokens; where all of them are learned, no file says so."""
        self._file.close()
        self._targets.close()
        if self.num_targets == self.num_tokens:
            self._stem.with_name(f"{self._stem.name}.targets").unlink()
        lengths = np.asarray(self._lengths, dtype="<i4")
        pointers = np.zeros(len(lengths), dtype="<i8")
        np.cumsum(lengths[:-1], dtype=np.int64, out=pointers[1:])
        head = HEADER.pack(MAGIC, VERSION, CODES[self._dtype], len(lengths), len(lengths) + 1)
        with self._stem.with_name(f"{self._stem.name}.idx").open("wb") as file:
            file.write(head)
            file.write(lengths.tobytes())
            file.write((pointers * self._dtype.itemsize).astype("<i8").tobytes())
            file.write(np.arange(len(lengths) + 1, dtype="<i8").tobytes())
