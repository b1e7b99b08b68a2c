"""Rows out of files of text, JSON Lines and Parquet, one after another, never a whole file of them at once."""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import IO, Any, cast

from shardwise.errors import DataError

__all__ = [
    "KNOWN_KEYS",
    "NOT_FOUND_FIX",
    "Row",
    "extra_error",
    "find_documents",
    "is_document_file",
    "read_rows",
    "unread_files",
]

PARAGRAPH_CHARS = 1 << 20
"""Characters of a text file read at a time; a document longer than this is cut at the next end of line."""

BROKEN_FILE = (OSError, EOFError, zlib.error)
"""What reading a file raises that may not be read, or whose compressed bytes are damaged or cut short."""

NOT_FOUND_FIX = (
    "give a path that exists, `synthetic` for made-up tokens, or download a data set of the Hub first: "
    "hf download NAME --repo-type dataset"
)
_TO_LINES = (
    "python -c 'import sys; from datasets import Dataset; Dataset.from_csv(sys.argv[1]%s).to_json(sys.argv[2])'"
    " {name} {stem}.jsonl"
)
OTHER_KINDS = {
    ".csv": f"write it as JSON Lines: {_TO_LINES % ''}",
    ".tsv": f"write it as JSON Lines: {_TO_LINES % ', sep=chr(9)'}",
    ".zst": "unpack it: zstd -d {name}",
    ".bz2": "unpack it: bunzip2 -k {name}",
    ".xz": "unpack it: unxz -k {name}",
    ".zip": "unpack it: unzip {name}",
    ".arrow": "name the folder that save_to_disk of `datasets` wrote, not a file in it",
}
"""Commands that make files of other kinds readable, by the ending of the name."""
TEXT_KINDS = (".txt", ".md")
CARDS = ("README", "LICENSE")
KNOWN_KEYS = ("prompt", "completion", "messages", "tools")
"""Keys of a row that mean something besides the one that holds the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a file or a data set."""

    place: str
    """The file and the line or row, as an error names them."""
    fields: Mapping[str, object]
    is_of_table: bool = False
    """Whether every row has the same columns, so that a value may be missing where a line would have no key."""


HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
"""The escape of one of the two halves (surrogates) that JSON makes some characters of."""

Reader = Callable[[Path, str], Iterator[Row]]


def read_rows(path: Path, *, field: str = "text") -> Iterator[Row]:
    """The rows of one file.

    Args:
        path: ``.txt`` or ``.md`` (one document, long files in pieces of about a megabyte cut at line ends), ``.jsonl``
            or ``.ndjson`` (one object a line), ``.json`` (the same, or one list of objects, which is read at once),
            each also as ``.gz``, or ``.parquet`` (one row each).
        field: the key or column that holds the text, or several with commas between them.
    """
    return _reader(path)(path, field)


def is_document_file(path: Path) -> bool:
    """Whether the name is that of a file documents can be read from."""
    return _kind(path) in READERS


def find_documents(path: Path) -> tuple[Path, ...]:
    """The file itself, or every readable file below a folder, in the order of their names.

    A README or LICENSE beside files of rows is the card of a data set, and no part of it.
    """
    if path.is_file():
        _reader(path)
        return (path,)
    if not path.is_dir():
        raise DataError(
            f"there is no file or folder {path}",
            code="data-not-found",
            fix=NOT_FOUND_FIX,
        )
    found = tuple(sorted(file for file in path.rglob("*") if file.is_file() and is_document_file(file)))
    if any(_kind(file) not in TEXT_KINDS for file in found):
        found = tuple(file for file in found if file.stem.upper() not in CARDS)
    if not found:
        raise DataError(
            f"{path} holds no file whose name ends in {', '.join(READERS)}",
            code="data-not-found",
            fix="give a folder that holds text, JSON Lines, Parquet, or a .bin/.idx pair of tokens",
        )
    return found


def unread_files(path: Path) -> tuple[str, ...]:
    """Names of the files below a folder that are not read as data, but for hidden ones."""
    if not path.is_dir():
        return ()
    read = {*find_documents(path)}
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and file not in read)
    names = [file.relative_to(path) for file in files]
    return tuple(str(name) for name in names if not any(part.startswith(".") for part in name.parts))


def _kind(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    return suffixes[-1] if suffixes else ""


def _reader(path: Path) -> Reader:
    reader = READERS.get(_kind(path))
    if reader is None:
        fix = OTHER_KINDS.get(path.suffix.lower(), "rename the file by what it holds, such as corpus.jsonl")
        raise DataError(
            f"{path.name} is of no kind that can be read: {', '.join(READERS)}, or .bin with .idx",
            code="data-kind",
            fix=fix.format(name=quote(str(path)), stem=quote(str(path.with_suffix("")))),
        )
    return reader


def _open_text(path: Path) -> IO[str]:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig")
    return path.open(encoding="utf-8-sig")


def _read_text(path: Path, field: str) -> Iterator[Row]:
    try:
        with _open_text(path) as file:
            while piece := file.read(PARAGRAPH_CHARS):
                yield Row(place=str(path), fields={field: piece + file.readline()})
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error
    except BROKEN_FILE as error:
        raise _unreadable(path, error) from error


def _read_json_lines(path: Path, field: str) -> Iterator[Row]:
    del field
    try:
        with _open_text(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    place = f"{path}, line {number}"
                    yield Row(place=place, fields=_object_of(line, place=place))
    except UnicodeDecodeError as error:
        raise _not_utf8(path, error) from error
    except BROKEN_FILE as error:
        raise _unreadable(path, error) from error


def _read_json(path: Path, field: str) -> Iterator[Row]:
    """Rows of a list of objects, or of one object a line."""
    with suppress(UnicodeDecodeError, *BROKEN_FILE), _open_text(path) as file:
        first = next((line for line in file if line.strip()), "")
        if first.lstrip().startswith("["):
            yield from _read_list(path, first + file.read())
            return
    yield from _read_json_lines(path, field)


def _read_list(path: Path, text: str) -> Iterator[Row]:
    for number, entry in enumerate(_value_of(text, place=str(path), fix="write one list of JSON objects"), start=1):
        yield Row(place=f"{path}, entry {number}", fields=entry if isinstance(entry, dict) else {})


def _not_utf8(path: Path, error: UnicodeDecodeError) -> DataError:
    return DataError(
        f"{path} is not UTF-8 text: {error.reason} at byte {error.start}",
        code="data-text",
        fix=f"convert it: iconv -f windows-1252 -t utf-8 {quote(str(path))}, or -f utf-16 or what else it is in",
    )


def _unreadable(path: Path, error: Exception) -> DataError:
    first_line = str(error).partition("\n")[0]
    return DataError(
        f"{path} cannot be read: {first_line}",
        code="data-unreadable",
        fix="copy or write the file again, or allow it to be read",
    )


def _object_of(line: str, *, place: str) -> Mapping[str, object]:
    """The object on a line; an empty one where the line holds another value."""
    record = _value_of(line, place=place, fix="write one JSON object on each line")
    return cast("dict[str, object]", record) if isinstance(record, dict) else {}


def _value_of(line: str, *, place: str, fix: str) -> Any:
    """The value of a text of JSON.

    Raises:
        DataError: it is not JSON, or a text in it has half of a character.
    """
    try:
        record: object = json.loads(line)
        if HALF_CHARACTER.search(line):
            json.dumps(record, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: a text ends or begins within a character: {error.object[error.start]!a} is half of one",
            code="data-text",
            fix="write the character whole, or drop the row",
        ) from error
    except (ValueError, RecursionError) as error:
        where = f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise DataError(
            f"{place}: not JSON: {where}",
            code="data-text",
            fix=fix,
        ) from error
    return record


def extra_error(what: str, package: str) -> DataError:
    """The refusal where a package of the extra ``data`` is not installed."""
    return DataError(
        f"{what} needs {package}, which is not installed", code="data-extra", fix="pip install 'shardwise[data]'"
    )


def _read_parquet(path: Path, field: str) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - only Parquet files need it
    except ImportError as error:
        raise extra_error(str(path), "pyarrow") from error
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            known = [name for name in dict.fromkeys((field, *field.split(","), *KNOWN_KEYS)) if name in names]
            is_told = {field, *field.split(","), "messages"} & {*known} or {"prompt", "completion"} <= {*known}
            columns = known if is_told else names
            batches = file.iter_batches(batch_size=1024, columns=columns)
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                yield Row(place=f"{path}, row {number}", fields=row, is_of_table=True)
    except (ArrowException, *BROKEN_FILE) as error:
        raise _unreadable(path, error) from error


READERS: dict[str, Reader] = {
    ".txt": _read_text,
    ".md": _read_text,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".json": _read_json,
    ".parquet": _read_parquet,
}
