"""Documents out of files of text, JSON Lines and Parquet, one after another, never a whole file of them at once."""

import gzip
import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from shardwise.errors import DataError

__all__ = ["find_documents", "is_document_file", "read_documents"]

PARAGRAPH_CHARS = 1 << 20
"""Characters of a text file read at a time; a document longer than this is cut at the next end of line."""

BROKEN_FILE = (OSError, EOFError, zlib.error)
"""What reading a file raises that may not be read, or whose compressed bytes are damaged or cut short."""

Reader = Callable[[Path, str], Iterator[str]]


def read_documents(path: Path, *, field: str = "text") -> Iterator[str]:
    """The documents of one file.

    Args:
        path: ``.txt`` or ``.md`` (one document, long files in pieces of about a megabyte cut at line ends), ``.jsonl``
            or ``.ndjson`` (one object a line), each also as ``.gz``, or ``.parquet`` (one row each).
        field: the key or column that holds the text.
    """
    return _reader(path)(path, field)


def is_document_file(path: Path) -> bool:
    """Whether the name is that of a file documents can be read from."""
    return _kind(path) in READERS


def find_documents(path: Path) -> tuple[Path, ...]:
    """The file itself, or every readable file below a folder, in the order of their names."""
    if path.is_file():
        _reader(path)
        return (path,)
    if not path.is_dir():
        raise DataError(
            f"there is no file or folder {path}",
            code="data-not-found",
            fix="give a path that exists, or `synthetic` for made-up tokens",
        )
    found = tuple(sorted(file for file in path.rglob("*") if file.is_file() and is_document_file(file)))
    if not found:
        raise DataError(
            f"{path} holds no file whose name ends in {', '.join(READERS)}",
            code="data-not-found",
            fix="give a folder that holds text, JSON Lines, Parquet, or a .bin/.idx pair of tokens",
        )
    return found


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return suffixes[-1] if suffixes else ""


def _reader(path: Path) -> Reader:
    reader = READERS.get(_kind(path))
    if reader is None:
        raise DataError(
            f"{path.name} is of no kind that can be read: {', '.join(READERS)}, or .bin with .idx",
            code="data-kind",
            fix="rename the file by what it holds, such as corpus.jsonl",
        )
    return reader


def _open_text(path: Path) -> IO[str]:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _read_text(path: Path, field: str) -> Iterator[str]:
    del field
    try:
        with _open_text(path) as file:
            while piece := file.read(PARAGRAPH_CHARS):
                yield piece + file.readline()
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error
    except BROKEN_FILE as error:
        raise _unreadable(path, error) from error


def _read_json_lines(path: Path, field: str) -> Iterator[str]:
    try:
        with _open_text(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _text_of(line, field=field, place=f"{path}, line {number}")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error
    except BROKEN_FILE as error:
        raise _unreadable(path, error) from error


def _not_utf8(path: Path, error: UnicodeDecodeError) -> DataError:
    return DataError(
        f"{path} is not UTF-8 text: {error.reason} at byte {error.start}",
        code="data-text",
        fix="convert it, such as with iconv -t utf-8",
    )


def _unreadable(path: Path, error: Exception) -> DataError:
    first_line = str(error).partition("\n")[0]
    return DataError(
        f"{path} cannot be read: {first_line}",
        code="data-unreadable",
        fix="copy or write the file again, or allow it to be read",
    )


def _text_of(line: str, *, field: str, place: str) -> str:
    try:
        record: object = json.loads(line)
    except (ValueError, RecursionError) as error:
        where = f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise DataError(
            f"{place}: not JSON: {where}",
            code="data-text",
            fix="write one JSON object on each line",
        ) from error
    fields = cast("dict[str, object]", record) if isinstance(record, dict) else {}
    text = fields.get(field)
    if isinstance(text, str):
        return text
    chat = next((name for name in (field, *fields) if _is_conversation(fields.get(name))), None)
    if chat is not None:
        raise _conversation(place, chat)
    if field in fields:
        raise DataError(
            f"{place}: '{field}' is {JSON_NAMES[type(text)]}, not text",
            code="data-field",
            fix="drop the lines without text, or name the key that holds it with --data-field",
        )
    keys = ", ".join(sorted(fields)) or "no keys at all"
    raise DataError(
        f"{place}: there is no text under '{field}'; the line has {keys}",
        code="data-field",
        fix="name the key that holds the text with --data-field",
    )


def _is_conversation(value: object) -> bool:
    """Whether a value is a list of turns, as chat data have them."""
    return isinstance(value, list) and len(value) > 0 and all(isinstance(turn, dict) for turn in value)


def _conversation(place: str, name: str) -> DataError:
    return DataError(
        f"{place}: '{name}' is a conversation, and documents are plain text: no chat template is applied, and no turn "
        "is left out of the loss",
        code="data-field",
        fix="write each conversation as one text, with apply_chat_template(messages, tokenize=False) of its tokenizer",
    )


def _read_parquet(path: Path, field: str) -> Iterator[str]:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - only Parquet files need it
    except ImportError as error:
        raise DataError(
            f"{path} needs pyarrow, which is not installed",
            code="data-extra",
            fix="pip install 'shardwise[data]'",
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise DataError(
                    f"{path} has no column '{field}'; it has {', '.join(names)}",
                    code="data-field",
                    fix="name the column that holds the text with --data-field",
                )
            batches = file.iter_batches(batch_size=1024, columns=[field])
            values = (value for batch in batches for value in batch.column(0).to_pylist())
            for number, value in enumerate(values, start=1):
                yield _text_in(value, field=field, place=f"{path}, row {number}")
    except (ArrowException, *BROKEN_FILE) as error:
        raise _unreadable(path, error) from error


def _text_in(value: object, *, field: str, place: str) -> str:
    if isinstance(value, str):
        return value
    if _is_conversation(value):
        raise _conversation(place, field)
    if value is None:
        raise DataError(
            f"{place}: there is no text in column '{field}'",
            code="data-field",
            fix="drop the rows without text, or name the column that holds it with --data-field",
        )
    raise DataError(
        f"{place}: column '{field}' holds {type(value).__name__}, not text",
        code="data-field",
        fix="name the column that holds the text with --data-field",
    )


JSON_NAMES: dict[type, str] = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
}
READERS: dict[str, Reader] = {
    ".txt": _read_text,
    ".md": _read_text,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json_lines,
    ".parquet": _read_parquet,
}
