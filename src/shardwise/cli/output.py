"""Where output goes: standard output with its width and colour, and files that are never overwritten unasked."""

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.errors import ShardwiseError

if TYPE_CHECKING:
    from shardwise.render.terminal import TextStyle

MAX_TEXT_WIDTH = 120
MIN_TEXT_WIDTH = 24


class OutputError(ShardwiseError):
    """A file that cannot be written."""


def write_line(text: str) -> None:
    """``text`` on standard output with exactly one line end; a terminal obeys nothing in it but colours."""
    from shardwise.render.printable import printable

    shown = printable(text, has_colour=sys.stdout.isatty() and takes_control_codes())
    sys.stdout.write(shown if shown.endswith("\n") else shown + "\n")


def write_note(text: str) -> None:
    """A line on standard error, for the person who waits."""
    from shardwise.render.printable import printable

    sys.stderr.write(printable(text) + "\n")


def stdout_style() -> "TextStyle":
    """The medium of standard output: 80 columns without colour unless it is a terminal."""
    from shardwise.render.terminal import PLAIN, TextStyle

    if not sys.stdout.isatty():
        return PLAIN
    width = min(shutil.get_terminal_size().columns, MAX_TEXT_WIDTH)
    return TextStyle(width=max(width, MIN_TEXT_WIDTH), has_colour=takes_control_codes())


def takes_control_codes() -> bool:
    """Whether the terminal and its user take colours and moving signs: not with ``NO_COLOR``, not on a dumb one."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def require_free(path: Path, *, is_forced: bool, example: str = "plan.json") -> None:
    """Return when a file may be written there; asked before long work, so that it is not done in vain.

    Args:
        path: where.
        is_forced: whether an existing file is replaced.
        example: a name that such a file may have, for the advice.

    Raises:
        OutputError: it is a folder, its folder does not exist, or it exists and ``--force`` was not given.
    """
    try:
        _unfinished(path).exists()
    except OSError as error:  # the name is too long for the file system
        raise OutputError(
            f"'{str(path)[:60]}…' cannot be a file: {error.strerror}", code="output-path", fix=f"write {example}"
        ) from None
    if path.is_dir():
        raise OutputError(f"'{path}' is a folder", code="output-path", fix=f"write to {path.joinpath(example)}")
    if not path.parent.is_dir():
        raise OutputError(f"there is no folder '{path.parent}'", code="output-path", fix="choose an existing folder")
    if path.exists() and not _is_device(path) and not is_forced:
        raise OutputError(f"'{path}' exists already", code="output-exists", fix="add --force, or choose another name")


def require_apart(written: Mapping[str, Path | None], read: Iterable[Path | str | None]) -> None:
    """Return when every file is written by one option and none is one that the command reads, with ``--force`` or not.

    Args:
        written: by option, where it was given.
        read: what the command reads; names that are no files are none.

    Raises:
        OutputError: two options name one file, or an option names one that is read.
    """
    inputs = [path for path in map(_real, read) if path is not None and path.is_file()]
    before: dict[Path, str] = {}
    for option, path in written.items():
        real = _real(path)
        if real is None:
            continue
        if real in inputs or real in before:
            why = f"{before[real]} writes as well" if real in before else "the command reads"
            raise OutputError(
                f"{option} would overwrite '{path}', which {why}",
                code="output-path",
                fix=f"give {option} another name",
            )
        before[real] = option


def _real(path: Path | str | None) -> Path | None:
    """Where a path leads, whatever it is called; ``None`` for what is none."""
    try:
        return None if path is None else Path(path).resolve()
    except (OSError, ValueError, RuntimeError):  # a text that no path can be
        return None


def write_file(path: Path, text: str, *, is_forced: bool, example: str = "plan.json") -> None:
    """Write a file and say so on stderr; an existing one only with ``--force``.

    The text goes to a neighbour first, so that an interrupted run leaves the old file or the whole new one. A device or
    pipe (``/dev/null``, ``>(gzip)``) is written to as it is, and a link goes on leading where it led.

    Raises:
        OutputError: it must not or cannot be written.
    """
    require_free(path, is_forced=is_forced, example=example)
    real = path if _is_device(path) else path.resolve()
    unfinished = real if _is_device(path) else _unfinished(real)
    try:
        with unfinished.open("w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text if text.endswith("\n") else text + "\n")
        if unfinished != real:
            unfinished.replace(real)
    except OSError as error:
        if unfinished != real:
            unfinished.unlink(missing_ok=True)
        raise OutputError(
            f"cannot write '{path}': {error.strerror}", code="output-path", fix="choose a folder you can write to"
        ) from None
    write_note(f"wrote {path}")


def _is_device(path: Path) -> bool:
    """Whether a path is something other than a file, which takes what is written and keeps no old text."""
    return path.exists() and not path.is_file()


def _unfinished(path: Path) -> Path:
    """The neighbour that a file is written to first."""
    return path.parent.joinpath(f".{path.name}.{os.getpid()}")
