"""Tokenizers from files: a Hugging Face ``tokenizer.json``, or bytes when there is none."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from shardwise.errors import DataError
from shardwise.train.data.documents import extra_error

__all__ = ["ByteTokenizer", "Encoded", "FileTokenizer", "Tokenizer", "open_tokenizer", "targets_of_spans"]

NUM_BYTES = 256


class Encoded(NamedTuple):
    """Tokens of one example, and which of them are learned."""

    tokens: npt.NDArray[np.int64]
    is_target: npt.NDArray[np.bool_]


def targets_of_spans(offsets: Sequence[tuple[int, int]], spans: Sequence[tuple[int, int]]) -> npt.NDArray[np.bool_]:
    """Which tokens end within one of the spans of a text, both in characters.

    Where a token reaches over the start of a span it belongs to it: it holds some of what is learned.

    >>> targets_of_spans([(0, 3), (3, 6), (6, 9), (0, 0)], [(4, 6)]).tolist()
    [False, True, False, False]
    """
    ends = np.asarray([end for _, end in offsets], dtype=np.int64)
    inside = [(ends > start) & (ends <= stop) for start, stop in spans]
    return np.any(inside, axis=0) if inside else np.zeros(len(ends), dtype=np.bool_)


class Tokenizer(Protocol):
    """Turns documents into token ids."""

    @property
    def path(self) -> Path | None:
        """The file that it was read from, beside which a chat template may stand."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest token number."""

    @property
    def end_token(self) -> int | None:
        """The token that closes a document."""

    @property
    def fingerprint(self) -> str:
        """A digest that is equal for tokenizers that give equal tokens."""

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """Tokens of every document, its end included."""

    def encode_completion(self, prompt: str, completion: str) -> Encoded:
        """Tokens of a prompt and its completion as one document; those of the completion and its end are learned."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens, special ones included."""


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """UTF-8 bytes as tokens 0 to 255, and 256 as the end of a document.

    >>> [tokens.tolist() for tokens in ByteTokenizer().encode(["ab"])]
    [[97, 98, 256]]
    """

    path: Path | None = None
    vocab_size: int = NUM_BYTES + 1
    end_token: int | None = NUM_BYTES
    fingerprint: str = "bytes"

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """Bytes of every document and its end."""
        end = np.array([NUM_BYTES], dtype=np.int64)
        return [np.concatenate([np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64), end]) for text in texts]

    def encode_completion(self, prompt: str, completion: str) -> Encoded:
        """Bytes of both and the end; the prompt's are not learned."""
        (tokens,) = self.encode([prompt + completion])
        return Encoded(tokens=tokens, is_target=np.arange(len(tokens)) >= len(prompt.encode()))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the bytes; ends are left out."""
        return bytes(token for token in tokens if token < NUM_BYTES).decode(errors="replace")


class FileTokenizer:
    """A ``tokenizer.json`` of the tokenizers library, with the tokens it adds by itself at the start of a document."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tokenizer: Any = _load(path)
        self.end_token = _end_token(path)
        self.vocab_size: int = (
            max(cast("dict[str, int]", self._tokenizer.get_vocab(with_added_tokens=True)).values()) + 1
        )
        self.fingerprint = hashlib.sha256(path.read_bytes() + str(self.end_token).encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[npt.NDArray[np.int64]]:
        """Tokens of every document, closed by the end token unless the tokenizer closed it already."""
        return [self._closed(encoding.ids) for encoding in self._tokenizer.encode_batch_fast(list(texts))]

    def encode_completion(self, prompt: str, completion: str) -> Encoded:
        """Tokens of the joined text; those that end in the completion are learned, and the token that closes it."""
        encoding = self._tokenizer.encode(prompt + completion)
        tokens = self._closed(encoding.ids)
        whole = len(prompt) + len(completion)
        is_target = targets_of_spans(encoding.offsets, [(len(prompt), whole)])
        return Encoded(tokens=tokens, is_target=np.append(is_target, True)[: len(tokens)] | self._is_close(tokens))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of the tokens, special ones included."""
        return str(self._tokenizer.decode([int(token) for token in tokens], skip_special_tokens=False))

    def _is_close(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """True at the last token alone, where it closes the document."""
        is_last = np.arange(len(tokens)) == len(tokens) - 1
        return is_last & (tokens == self.end_token) if self.end_token is not None else np.zeros_like(is_last)

    def _closed(self, numbers: list[int]) -> npt.NDArray[np.int64]:
        is_open = self.end_token is not None and (not numbers or numbers[-1] != self.end_token)
        return np.array([*numbers, self.end_token] if is_open else numbers, dtype=np.int64)


def open_tokenizer(path: Path | None) -> Tokenizer:
    """The tokenizer of a file ``tokenizer.json`` or of a folder that holds one; bytes for ``None``."""
    if path is None:
        return ByteTokenizer()
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise DataError(
            f"there is no tokenizer at {file}",
            code="data-tokenizer",
            fix="give a tokenizer.json, or the folder of a Hugging Face model; leave it out to train on bytes",
        )
    return FileTokenizer(file)


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer as Backend  # noqa: PLC0415 - bytes and ready tokens need none
    except ImportError as error:
        raise extra_error("reading a tokenizer.json", "tokenizers") from error
    if not isinstance(_json(path).get("model"), dict):
        raise _no_tokenizer(path, "it has no field 'model'")
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise _no_tokenizer(path, f"{error}") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def _no_tokenizer(path: Path, reason: str) -> DataError:
    return DataError(
        f"{path} is not a tokenizer of the tokenizers library: {reason.splitlines()[0]}",
        code="data-tokenizer",
        fix="give the tokenizer.json of a Hugging Face model",
    )


def _end_token(file: Path) -> int | None:
    """The end token that the files beside a ``tokenizer.json`` name."""
    added = {entry["content"]: entry["id"] for entry in _json(file).get("added_tokens", [])}
    named = _json(file.with_name("tokenizer_config.json")).get("eos_token")
    name = named.get("content") if isinstance(named, dict) else named
    if name in added:
        return int(added[name])
    if name is not None:
        number = _json(file).get("model", {}).get("vocab", {})
        if isinstance(number, dict) and name in number:
            return int(number[name])
    for beside in ("generation_config.json", "config.json"):
        number = _json(file.with_name(beside)).get("eos_token_id")
        first = next(iter(number), None) if isinstance(number, list) else number
        if first is not None:
            return int(first)
    usual = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|im_end|>")
    return next((int(added[word]) for word in usual if word in added), None)


def _json(path: Path) -> dict[str, Any]:
    """The object in a file; none without the file."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _no_tokenizer(path, f"{error}") from error
    if not isinstance(found, dict):
        raise _no_tokenizer(path, "it holds no object")
    return cast("dict[str, Any]", found)
