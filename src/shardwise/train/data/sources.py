"""What ``--data`` names: files, a folder that `datasets` saved, or a data set in the local cache of the Hub."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from shardwise.errors import DataError
from shardwise.train.data.documents import NOT_FOUND_FIX, Row, extra_error, find_documents, read_rows

__all__ = ["Source", "parse_source", "read_by_file", "read_source", "source_files"]

WEIGHT = re.compile(r"^(?P<rest>.+):(?P<weight>\d+(\.\d+)?)$")
SPLIT = re.compile(r"^(?P<rest>.+)@(?P<split>[A-Za-z_][^/@]*)$")
HUB_NAME = re.compile(r"^[\w.-]+(/[\w.-]+)?$")
DEFAULT_SPLIT = "train"
SAVED = ("dataset_info.json", "dataset_dict.json")
"""A folder that ``save_to_disk`` of `datasets` wrote holds one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where some of the data are, and how much of the run's samples they are."""

    path: Path
    split: str = ""
    """The split of a data set, as `datasets` writes it; empty for files."""
    weight_ratio: float | None = None
    """Share of the samples, relative to the other sources; ``None`` takes all data once."""

    @property
    def text(self) -> str:
        """The source as :func:`parse_source` reads it."""
        split = f"@{self.split}" if self.split else ""
        return f"{self.path}{split}{'' if self.weight_ratio is None else f':{self.weight_ratio:g}'}"


def parse_source(text: str) -> Source:
    """``PATH``, ``PATH@SPLIT`` or a name of the Hub, each with ``:WEIGHT`` where it is given; the path is absolute.

    >>> source = parse_source("/no/folder@train[:80%]:0.7")
    >>> str(source.path), source.split, source.weight_ratio
    ('/no/folder', 'train[:80%]', 0.7)
    """
    name, split, weight = text, "", None
    if not Path(name).exists() and (found := WEIGHT.match(name)):
        name, weight = found["rest"], float(found["weight"])
    if not Path(name).exists() and (found := SPLIT.match(name)):
        name, split = found["rest"], found["split"]
    path = Path(name)
    if not path.exists() and HUB_NAME.match(name) and (cached := _in_hub_cache(name)) is not None:
        return Source(path=cached, split=split or DEFAULT_SPLIT, weight_ratio=weight)
    if not split and _is_saved(path):
        split = DEFAULT_SPLIT
    return Source(path=path.resolve(), split=split, weight_ratio=weight)


def _is_saved(path: Path) -> bool:
    """Whether a path is a folder that ``save_to_disk`` of `datasets` wrote."""
    return any((path / file).is_file() for file in SAVED)


def _in_hub_cache(name: str) -> Path | None:
    """The newest snapshot of a data set that was downloaded before; nothing is fetched."""
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415 - only names of the Hub need it
        from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415
    except ImportError:
        return None
    try:
        return Path(snapshot_download(name, repo_type="dataset", local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def source_files(source: Source) -> tuple[Path, ...]:
    """The files whose size and time tell whether a source has changed."""
    if not source.split:
        return find_documents(source.path)
    if not source.path.is_dir():
        raise DataError(
            f"there is no folder {source.path}, nor a data set of that name in the local cache of the Hub",
            code="data-not-found",
            fix=NOT_FOUND_FIX,
        )
    return tuple(sorted(file for file in source.path.rglob("*") if file.is_file()))


def read_source(source: Source, *, field: str) -> Iterator[Row]:
    """The rows of all files of a source, or of its split."""
    return chain.from_iterable(read_by_file(source, field=field))


def read_by_file(source: Source, *, field: str) -> Iterator[Iterator[Row]]:
    """The rows of each file of a source; a split is read as one file."""
    if source.split:
        yield _read_data_set(source)
        return
    for file in find_documents(source.path):
        yield read_rows(file, field=field)


def _read_data_set(source: Source) -> Iterator[Row]:
    data_set = _opened(source)
    for number, row in enumerate(data_set, start=1):
        yield Row(place=f"{source.path}, split {source.split}, row {number}", fields=dict(row), is_of_table=True)


def _opened(source: Source) -> Any:
    try:
        from datasets import (  # noqa: PLC0415
            DatasetDict,
            ReadInstruction,
            concatenate_datasets,
            disable_progress_bars,
            load_dataset,
            load_from_disk,
        )
    except ImportError as error:
        raise extra_error(f"{source.path}", "datasets") from error
    disable_progress_bars()
    try:
        if not _is_saved(source.path):
            return load_dataset(str(source.path), split=source.split)
        saved = load_from_disk(str(source.path))
    except Exception as error:  # datasets raises what its many readers raise
        raise _no_split(source, str(error).splitlines()[0]) from error
    parts = dict(saved) if isinstance(saved, DatasetDict) else {str(saved.split or DEFAULT_SPLIT): saved}
    try:
        slices = ReadInstruction.from_spec(source.split).to_absolute({name: len(part) for name, part in parts.items()})
    except (AssertionError, ValueError) as error:  # an unknown split, or a slice that is none
        raise _no_split(source, f"it has {', '.join(parts)}") from error
    return concatenate_datasets([parts[one.splitname].select(range(one.from_, one.to)) for one in slices])


def _no_split(source: Source, reason: str) -> DataError:
    return DataError(
        f"{source.path} has no split '{source.split}' that `datasets` can read: {reason}",
        code="data-split",
        fix=f"name one of its splits: --data {source.path}@SPLIT",
    )
