"""The files of a Hugging Face checkpoint, by their index and headers; needs no torch, so that a launcher can look."""

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from shardwise.errors import CheckpointError

__all__ = [
    "SavedTensor",
    "base_name",
    "files_by_tensor",
    "read_config",
    "require_whole",
    "saved_tensors",
    "weights_digest",
]

INDEX = "model.safetensors.index.json"
LENGTH_BYTES = 8
"""A file begins with the length of its header, little-endian (github.com/huggingface/safetensors, Format)."""
MOST_NAME_BYTES = 255
DIGEST_PIECES, DIGEST_PIECE_BYTES = 64, 65_536
DIGEST_CHARACTERS = 16
MAX_HEADER_BYTES = 100_000_000
"""The longest header that the format allows."""


def files_by_tensor(folder: Path) -> dict[str, Path]:
    """Which file holds which tensor: as the index says, or else the headers of all files.

    Raises:
        CheckpointError: there are no files, or not all that the index names.
    """
    if (folder / INDEX).is_file():
        found = _indexed(folder)
        missing = sorted({path.name for path in found.values() if not path.is_file()})
        if missing:
            raise CheckpointError(
                f"{folder} lacks {', '.join(missing)}, which its index names",
                code="pretrained-files",
                fix="copy the missing files as well",
            )
        return found
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(
            f"{folder} {'holds no safetensors files' if folder.is_dir() else 'is no folder'}",
            code="pretrained-files",
            fix="name a folder with model.safetensors, or with its parts and their index",
        )
    return {name: path for path in files for name in _header(path)}


def require_whole(folder: Path) -> None:
    """Return when every file of the checkpoint is as long as its header says, and the config can be read.

    Raises:
        CheckpointError: one is missing, cut short, or something else.
    """
    saved_tensors(folder)
    read_config(folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """Shape and dtype of a tensor, as the header of its file says."""

    shape: tuple[int, ...]
    dtype: str
    """The dtype as the format spells it: ``BF16``, ``F32``, ``I8``."""


def saved_tensors(folder: Path) -> dict[str, SavedTensor]:
    """Shape and type of every tensor, as the headers of the files say; each is looked at for being whole.

    Raises:
        CheckpointError: a file is missing, cut short, something else, or lacks a tensor that the index says it holds.
    """
    found = files_by_tensor(folder)
    headers = {path: _header(path) for path in sorted(set(found.values()))}
    lost = next((name for name, path in found.items() if name not in headers[path]), None)
    if lost is not None:
        raise _unreadable(found[lost], f"it holds no {lost}, which the index says it does")
    rows = {name: headers[path][name] for name, path in found.items()}
    return {name: SavedTensor(shape=tuple(row["shape"]), dtype=str(row.get("dtype"))) for name, row in rows.items()}


def weights_digest(folder: Path) -> str | None:
    """A digest of the sizes of the folder's safetensors files and of samples from each; ``None`` without such files.

    It tells one model from another of the same shapes without reading all of either.
    """
    digest, files = sha256(), sorted(folder.glob("*.safetensors"))
    try:
        for path in files:
            with path.open("rb") as file:
                size_bytes = os.fstat(file.fileno()).st_size
                digest.update(f"{path.name} {size_bytes}".encode())
                for piece in range(DIGEST_PIECES):
                    file.seek(piece * size_bytes // DIGEST_PIECES)
                    digest.update(file.read(DIGEST_PIECE_BYTES))
    except OSError:
        return None
    return digest.hexdigest()[:DIGEST_CHARACTERS] if files else None


def read_config(folder: Path) -> dict[str, Any]:
    """The fields of the checkpoint's ``config.json``; none without one."""
    path = folder / "config.json"
    return _json_object(path) if path.is_file() else {}


def _indexed(folder: Path) -> dict[str, Path]:
    path = folder / INDEX
    weight_map = _json_object(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _unreadable(path, "it has no weight_map")
    for file in weight_map.values():
        if not _is_file_name(file):
            raise _unreadable(path, f"{str(file)[:60]!r} in its weight_map is no name of a file beside it")
    return {name: folder / file for name, file in weight_map.items()}


def _is_file_name(name: object) -> bool:
    """Whether a name can be that of a file in the folder itself, and nowhere else."""
    if not isinstance(name, str) or not name.isprintable() or Path(name).name != name:
        return False
    return 0 < len(name.encode(errors="replace")) <= MOST_NAME_BYTES


def _header(path: Path) -> dict[str, Any]:
    """The facts of a file's header on every tensor; refuses a file that is shorter or longer than the header says."""
    try:
        with path.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            header_bytes = int.from_bytes(file.read(LENGTH_BYTES), "little")
            text = file.read(header_bytes) if header_bytes <= MAX_HEADER_BYTES else b""
        rows = {name: row for name, row in json.loads(text).items() if name != "__metadata__"}
        ends = [int(row["data_offsets"][1]) for row in rows.values() if all(size >= 0 for size in row["shape"])]
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise _unreadable(path, "it does not begin as safetensors files do") from error
    promised_bytes = LENGTH_BYTES + header_bytes + max(ends, default=0)
    if size_bytes != promised_bytes:
        raise _unreadable(path, f"it has {size_bytes:,} bytes, and its header promises {promised_bytes:,}")
    return rows


def _json_object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _unreadable(path, str(error).partition("\n")[0]) from error
    if not isinstance(found, dict):
        raise _unreadable(path, "it holds no object")
    return found


def _unreadable(path: Path, reason: str) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be read: {reason}", code="pretrained-files", fix="copy the file again, or save the model again"
    )


def base_name(name: str, held: Collection[str]) -> str:
    """The name that a matrix of the model has in a checkpoint, which may leave out the name of the base model.

    Raises:
        CheckpointError: it is there under neither.
    """
    for known in (name, name.partition(".")[2]):
        if known in held:
            return known
    raise CheckpointError(
        f"the weights hold no {name}, which has an adapter, so that nothing can be merged",
        code="export-merge",
        fix="leave out --merge, and merge with peft: PeftModel.from_pretrained(...).merge_and_unload()",
    )
