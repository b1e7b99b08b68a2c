"""Turns files of documents into tokens on disk, once: the next run with the same files and tokenizer maps them."""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from shardwise.errors import DataError
from shardwise.train.data.documents import find_documents, read_documents
from shardwise.train.data.indexed_tokens import IndexedTokens, TokenWriter, read_indexed_tokens, token_dtype
from shardwise.train.data.tokenizer import Tokenizer
from shardwise.train.failure.full_disk import writing
from shardwise.train.writable import why_not_writable

__all__ = ["TokenisedFiles", "cache_folder", "is_tokenised", "require_cache", "tokenise", "tokenise_once"]

FORMAT_VERSION = 2
"""Version of the cache: files are tokenised again when what is read of them changes."""
BATCH_DOCUMENTS = 512
TOKENS_NAME = "tokens"
CACHE_FIX = "make room there, or set XDG_CACHE_HOME to a folder on another disk"

Progress = Callable[[int, int], None]
"""Called with the documents and tokens written so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenisedFiles:
    """What was tokenised; written as ``tokens.json`` beside the tokens."""

    format_version: int
    tokenizer: str
    vocab_size: int
    end_token: int | None
    num_documents: int
    num_tokens: int
    sources: tuple[str, ...]


def cache_folder() -> Path:
    """The folder that keeps tokenised data between runs."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(root) if root else Path.home() / ".cache") / "shardwise" / "tokens"
    except RuntimeError as error:  # a user without a home
        raise _no_cache(Path("~/.cache"), str(error)) from None


def require_cache(folder: Path) -> None:
    """Return when tokens can be kept in a folder, which need not be there yet.

    Raises:
        DataError: it may not be written to, or cannot be made.
    """
    reason = why_not_writable(folder)
    if reason:
        raise _no_cache(folder, reason)


def _no_cache(folder: Path, reason: str) -> DataError:
    return DataError(
        f"the tokens of the data cannot be kept in {folder}: {reason}",
        code="data-cache",
        fix="set XDG_CACHE_HOME to a folder that can be written to, or give files of tokens (shardwise tokenize)",
    )


def tokenise_once(
    path: Path, *, tokenizer: Tokenizer, field: str, cache: Path, progress: Progress | None = None
) -> IndexedTokens:
    """Tokens of a file or folder of documents, from the cache when the same were tokenised before.

    Any number of processes may call this at once: one tokenises, the others wait for it. A folder in the cache is
    complete, because it takes its name only when everything in it is written.
    """
    files = find_documents(path)
    folder = cache / _fingerprint(files, tokenizer=tokenizer, field=field)
    if not folder.is_dir():
        with _lock(folder):
            if not folder.is_dir():
                with writing(folder, fix=CACHE_FIX):
                    tokenise(files, folder, tokenizer=tokenizer, field=field, progress=progress)
    return read_indexed_tokens(folder / TOKENS_NAME)


def is_tokenised(path: Path, *, tokenizer: Tokenizer, field: str, cache: Path) -> bool:
    """Whether the cache holds the tokens of a file or folder of documents as they are now."""
    return (cache / _fingerprint(find_documents(path), tokenizer=tokenizer, field=field)).is_dir()


def tokenise(
    files: Iterable[Path], folder: Path, *, tokenizer: Tokenizer, field: str = "text", progress: Progress | None = None
) -> TokenisedFiles:
    """Write the tokens of ``files`` to a folder that does not exist yet."""
    paths = tuple(files)
    unfinished = folder.with_name(f"{folder.name}.unfinished-{os.getpid()}")
    unfinished.mkdir(parents=True)
    try:
        summary = _write(paths, unfinished, tokenizer=tokenizer, field=field, progress=progress)
        for path in (*unfinished.iterdir(), unfinished):
            _flush(path)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return summary


def _write(
    paths: tuple[Path, ...], folder: Path, *, tokenizer: Tokenizer, field: str, progress: Progress | None
) -> TokenisedFiles:
    writer = TokenWriter(folder / TOKENS_NAME, dtype=token_dtype(tokenizer.vocab_size))
    documents = _documents(paths, field)
    while texts := list(islice(documents, BATCH_DOCUMENTS)):
        writer.add(tokenizer.encode(texts))
        if progress is not None:
            progress(writer.num_documents, writer.num_tokens)
    writer.close()
    if not writer.num_tokens:
        raise DataError(
            f"{paths[0]} and {len(paths) - 1} more hold no text" if len(paths) > 1 else f"{paths[0]} holds no text",
            code="data-too-short",
            fix="give files with something in them",
        )
    summary = TokenisedFiles(
        format_version=FORMAT_VERSION,
        tokenizer=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        end_token=tokenizer.end_token,
        num_documents=writer.num_documents,
        num_tokens=writer.num_tokens,
        sources=tuple(path.name for path in paths),
    )
    text = json.dumps(asdict(summary), indent=1)
    (folder / f"{TOKENS_NAME}.json").write_text(text, encoding="utf-8")
    return summary


def _documents(paths: tuple[Path, ...], field: str) -> Iterator[str]:
    for path in paths:
        yield from read_documents(path, field=field)


def _fingerprint(files: tuple[Path, ...], *, tokenizer: Tokenizer, field: str) -> str:
    """Changes when a file, its text field, the tokenizer or our format does."""
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    text = json.dumps([FORMAT_VERSION, tokenizer.fingerprint, field, stats])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Held by one process at a time, and let go by the system when that process dies."""
    require_cache(folder.parent)
    try:
        with writing(folder.parent, fix=CACHE_FIX):
            folder.parent.mkdir(parents=True, exist_ok=True)
            file = folder.with_name(f"{folder.name}.lock").open("w")
    except OSError as error:
        raise _no_cache(folder.parent, error.strerror or str(error)) from None
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
