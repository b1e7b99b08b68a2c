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
from typing import Any, cast

from shardwise.errors import DataError
from shardwise.train.data.chat import template_digest
from shardwise.train.data.encoding import Encoder
from shardwise.train.data.examples import Example, example_of
from shardwise.train.data.indexed_tokens import IndexedTokens, TokenWriter, read_indexed_tokens, token_dtype
from shardwise.train.data.sources import Source, read_source, source_files
from shardwise.train.data.tokenizer import Tokenizer
from shardwise.train.failure.full_disk import writing
from shardwise.train.writable import why_not_writable

__all__ = ["TokenisedFiles", "cache_folder", "require_cache", "tokenise", "tokenise_once", "tokenised_summary"]

FORMAT_VERSION = 5
"""Version of the cache: files are tokenised again when what is read of them changes."""
BATCH_DOCUMENTS = 512
TOKENS_NAME = "tokens"
CACHE_FIX = "make room there, or set XDG_CACHE_HOME to a folder on another disk"

Progress = Callable[[int, int], None]
"""Called with the documents and tokens written so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenisedFiles:
    """Facts about tokenised files: tokenizer, counts and targets; written as ``tokens.json`` beside the tokens."""

    format_version: int
    tokenizer: str
    vocab_size: int
    end_token: int | None
    num_documents: int
    num_tokens: int
    num_target_tokens: int
    """Tokens that are learned: all of a text, of other rows those of the completion or of the assistant."""
    targets_by: tuple[str, ...]
    """How the assistant's tokens were told from the others, where there were conversations."""
    num_empty_answers: int
    """Rows whose answer says nothing, of which only the end is learned."""
    num_open_answers: int
    """Conversations in which no special token closes what the assistant says."""
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
    source: Source, *, tokenizer: Tokenizer, field: str, cache: Path, progress: Progress | None = None
) -> IndexedTokens:
    """Tokens of a source, from the cache when the same were tokenised before.

    Any number of processes may call this at once: one tokenises, the others wait for it. A folder in the cache is
    complete, because it takes its name only when everything in it is written.
    """
    folder = cache / _fingerprint(source, tokenizer=tokenizer, field=field)
    if not folder.is_dir():
        with _lock(folder):
            if not folder.is_dir():
                with writing(folder, fix=CACHE_FIX):
                    tokenise([source], folder, tokenizer=tokenizer, field=field, progress=progress)
    return read_indexed_tokens(folder / TOKENS_NAME)


def tokenised_summary(source: Source, *, tokenizer: Tokenizer, field: str, cache: Path) -> dict[str, Any] | None:
    """The cache's summary of the tokens of a source as the source is now; ``None`` where it has none."""
    file = cache / _fingerprint(source, tokenizer=tokenizer, field=field) / f"{TOKENS_NAME}.json"
    return cast("dict[str, Any]", json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def tokenise(
    sources: Iterable[Source],
    folder: Path,
    *,
    tokenizer: Tokenizer,
    field: str = "text",
    progress: Progress | None = None,
) -> TokenisedFiles:
    """Write the tokens of ``sources`` to a folder that does not exist yet."""
    read = tuple(sources)
    unfinished = folder.with_name(f"{folder.name}.unfinished-{os.getpid()}")
    unfinished.mkdir(parents=True)
    try:
        summary = _write(read, unfinished, tokenizer=tokenizer, field=field, progress=progress)
        for path in (*unfinished.iterdir(), unfinished):
            _flush(path)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return summary


def _write(
    sources: tuple[Source, ...], folder: Path, *, tokenizer: Tokenizer, field: str, progress: Progress | None
) -> TokenisedFiles:
    writer = TokenWriter(folder / TOKENS_NAME, dtype=token_dtype(tokenizer.vocab_size))
    encoder, examples = Encoder(tokenizer), _examples(sources, field)
    while batch := list(islice(examples, BATCH_DOCUMENTS)):
        encoded = encoder.encode(batch)
        writer.add((one.tokens for one in encoded), (one.is_target for one in encoded))
        if progress is not None:
            progress(writer.num_documents, writer.num_tokens)
    writer.close()
    files = [file for source in sources for file in source_files(source)]
    if not writer.num_tokens:
        raise DataError(
            f"{files[0]} and {len(files) - 1} more hold no text" if len(files) > 1 else f"{files[0]} holds no text",
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
        num_target_tokens=writer.num_targets,
        targets_by=tuple(sorted(encoder.targets_by)),
        num_empty_answers=encoder.num_empty_answers,
        num_open_answers=encoder.num_open_answers,
        sources=tuple(path.name for path in files),
    )
    text = json.dumps(asdict(summary), indent=1)
    (folder / f"{TOKENS_NAME}.json").write_text(text, encoding="utf-8")
    return summary


def _examples(sources: tuple[Source, ...], field: str) -> Iterator[Example]:
    for source in sources:
        yield from (example_of(row, field=field) for row in read_source(source, field=field))


def _fingerprint(source: Source, *, tokenizer: Tokenizer, field: str) -> str:
    """Changes when a file, the split, its text field, the tokenizer, its chat template or our format does."""
    files = source_files(source)
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    template = template_digest(tokenizer.path)
    text = json.dumps([FORMAT_VERSION, tokenizer.fingerprint, template, field, source.split, stats])
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
