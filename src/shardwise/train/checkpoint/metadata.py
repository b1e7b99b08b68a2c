"""Reads ``.metadata`` without running it: torch writes a pickle there, and a pickle may call whatever it names.

Names of ``torch.distributed.checkpoint``'s own records are known here, and each stands for a bag of fields. From the
bags, records of torch are made when every field is what it should be and no claim goes beyond the files that are there.
"""

import io
import pickle
import pickletools
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from shardwise.errors import CheckpointError
from shardwise.train.checkpoint.folder import METADATA, damaged_error
from shardwise.train.torch_private import storage_place

__all__ = ["read_metadata", "unsafe_error"]

MAX_BYTES = 1 << 30
"""A hundred times what 64 ranks write for 20,000 tensors."""
RECORDS = "torch.distributed.checkpoint.metadata"
RECORD_NAMES = (
    "Metadata",
    "TensorStorageMetadata",
    "TensorProperties",
    "ChunkStorageMetadata",
    "BytesStorageMetadata",
    "MetadataIndex",
    "StorageMeta",
)
MEMO_WRITES = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
DAMAGED = (pickle.UnpicklingError, EOFError, OSError, *(ValueError, TypeError, KeyError, IndexError, AttributeError))
"""What reading bytes that are no pickle of ours raises; memory that a pickle asks for in vain comes to it."""


class _Fields:
    """A record as the file has it."""

    state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    """Plain containers, numbers, texts, types of elements, and bags of fields under the names of torch's records."""

    def __init__(self, content: bytes, checkpoint: Path) -> None:
        super().__init__(io.BytesIO(content))
        self._checkpoint = checkpoint
        # Made anew for every file: a pickle may set attributes of what it was given.
        records = {(RECORDS, name): type(name, (_Fields,), {}) for name in RECORD_NAMES}
        self._known: dict[tuple[str, str], object] = {
            **records,
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): type("_StorageInfo", (_Fields,), {}),
            (RECORDS, "_MEM_FORMAT_ENCODING"): lambda value: value,
            ("builtins", "getattr"): lambda _, name: name,  # how Python 3.11.0 writes a member of an enumeration
            ("torch", "Size"): lambda sizes=(): tuple(sizes),
            ("torch.serialization", "_get_layout"): lambda name: name,
            ("collections", "OrderedDict"): dict,
            **{
                (module, name): lambda *parts: "/".join(parts)
                for module in ("pathlib", "pathlib._local")
                for name in ("PosixPath", "WindowsPath")
            },
        }

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        known = self._known.get((module_name, global_name))
        if known is not None:
            return known
        dtype = vars(torch).get(global_name) if module_name == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        raise unsafe_error(self._checkpoint, METADATA, f"names {module_name}.{global_name}")


def unsafe_error(checkpoint: Path, file: str, reason: str) -> CheckpointError:
    """What to say of a checkpoint that holds something besides tensors and plain values."""
    return CheckpointError(
        f"{checkpoint / file} {reason}, which no checkpoint of shardwise does: reading it further could run code of "
        "whoever made it",
        code="checkpoint-unsafe",
        fix="resume from a checkpoint that a run of shardwise wrote, copied again from where it was written",
    )


def read_metadata(checkpoint: Path) -> Metadata:
    """The tensors and values of a checkpoint, and their places in its files.

    Raises:
        CheckpointError: the file is damaged, claims what is not there, or names what could run code.
    """
    path = checkpoint / METADATA
    try:
        if path.stat().st_size > MAX_BYTES:
            raise damaged_error(checkpoint, METADATA, f"has {path.stat().st_size:,} bytes, and {MAX_BYTES:,} are read")
        content = path.read_bytes()
        _require_modest(content)
        return _metadata_of(_Unpickler(content, checkpoint).load(), checkpoint)
    except (*DAMAGED, MemoryError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise damaged_error(checkpoint, METADATA, f"cannot be read: {reason}") from error


def _misfit(reason: str) -> ValueError:
    """An error about the content of the file; :func:`read_metadata` reports its text."""
    return ValueError(reason)


def _require_modest(content: bytes) -> None:
    """Return when no operation of a pickle claims more bytes than follow, or a place in a table of billions."""
    for count, (operation, argument, _) in enumerate(pickletools.genops(io.BytesIO(content))):
        if operation.name in MEMO_WRITES and isinstance(argument, int) and argument > count:
            raise _misfit(f"it claims room for {argument:,} values")


def _metadata_of(found: object, checkpoint: Path) -> Metadata:
    fields = _fields(found, "Metadata")
    tensors = {_text(name): _held(value) for name, value in _mapping(fields["state_dict_metadata"]).items()}
    sizes = {path.name: path.stat().st_size for path in checkpoint.iterdir() if path.is_file()}
    storage = {_index(index): _place(place, sizes) for index, place in _mapping(fields["storage_data"]).items()}
    held_bytes = {key: size for name, held in tensors.items() for key, size in _parts(name, held)}
    if unknown := storage.keys() - held_bytes.keys():
        raise _misfit(f"it says where a part of {min(key.fqn for key in unknown)} is that it does not list")
    for key, size in held_bytes.items():
        if key not in storage:
            raise _misfit(f"nothing says where {key.fqn} is")
        if size > storage[key].length:  # nobody is to make room for more than there is
            raise _misfit(f"{size:,} bytes of {key.fqn} are said to be in {storage[key].length:,} bytes")
    return Metadata(
        state_dict_metadata=tensors,
        planner_data={name: _path(value) for name, value in _mapping(fields.get("planner_data") or {}).items()},
        storage_data=storage,
        storage_meta=StorageMeta(),
        version=_text(fields["version"]) if fields.get("version") is not None else None,
    )


def _held(found: object) -> TensorStorageMetadata | BytesStorageMetadata:
    """The metadata under one name: of a tensor, whose parts cover its elements, or of another object in bytes."""
    if type(found).__name__ == "BytesStorageMetadata":
        return BytesStorageMetadata()
    fields = _fields(found, "TensorStorageMetadata")
    size = _sizes(fields["size"])
    parts = [_fields(part, "ChunkStorageMetadata") for part in fields["chunks"]]
    chunks = [ChunkStorageMetadata(offsets=_sizes(part["offsets"]), sizes=_sizes(part["sizes"])) for part in parts]
    for chunk in chunks:
        ends = [offset + length for offset, length in zip(chunk.offsets, chunk.sizes, strict=True)]
        if any(end > whole for end, whole in zip(ends, size, strict=True)):
            raise _misfit(f"a part of a tensor of {tuple(size)} ends at {ends}")
    if sum(prod(chunk.sizes) for chunk in chunks) != prod(size):
        raise _misfit(f"a tensor of {tuple(size)} is not all there")
    return TensorStorageMetadata(properties=TensorProperties(dtype=_dtype(fields)), size=size, chunks=chunks)


def _dtype(fields: Mapping[str, object]) -> torch.dtype:
    properties = fields["properties"]
    state = properties.state if isinstance(properties, _Fields) else None
    if not isinstance(state, tuple) or not isinstance(state[0], torch.dtype):
        raise _misfit("a tensor has no type")
    return state[0]


def _index(found: object) -> MetadataIndex:
    fields = _fields(found, "MetadataIndex")
    offset, index = fields.get("offset"), fields.get("index")
    return MetadataIndex(
        _text(fields["fqn"]),
        _sizes(offset) if offset is not None else None,
        _whole(index) if index is not None else None,
    )


def _place(found: object, sizes: Mapping[str, int]) -> Any:
    """Where bytes are: within one of the checkpoint's own files, as they were written."""
    fields = _fields(found, "_StorageInfo")
    name, start, length = _text(fields["relative_path"]), _whole(fields["offset"]), _whole(fields["length"])
    if name not in sizes:
        raise _misfit(f"it names {name!r}, which is no file of the checkpoint")
    if start + length > sizes[name]:
        raise _misfit(f"it claims byte {start + length:,} of {name}, which has {sizes[name]:,}")
    if fields.get("transform_descriptors"):
        raise _misfit("it says that tensors were transformed")
    return storage_place(file=name, offset=start, length=length)


def _parts(name: str, held: TensorStorageMetadata | BytesStorageMetadata) -> Iterator[tuple[MetadataIndex, int]]:
    """The parts of what is under a name, each with the bytes that it takes at least."""
    if isinstance(held, BytesStorageMetadata):
        yield MetadataIndex(name), 0
        return
    for chunk in held.chunks:
        yield MetadataIndex(name, chunk.offsets), prod(chunk.sizes) * held.properties.dtype.itemsize


def _fields(found: object, name: str) -> Mapping[str, Any]:
    if not isinstance(found, _Fields) or type(found).__name__ != name or not isinstance(found.state, dict):
        raise _misfit(f"it has {type(found).__name__} where {name} belongs")
    return found.state


def _checked(kind: type, said: str) -> Callable[[object], Any]:
    def check(found: object) -> Any:
        if type(found) is not kind:
            raise _misfit(f"it has {type(found).__name__} where {said} belongs")
        return found

    return check


_text = _checked(str, "a name")
_mapping = _checked(dict, "a table")


def _whole(found: object) -> int:
    if type(found) is not int or found < 0:
        raise _misfit(f"it has {str(found)[:40]} where a whole number belongs")
    return found


def _sizes(found: object) -> torch.Size:
    if not isinstance(found, tuple):
        raise _misfit(f"it has {type(found).__name__} where sizes belong")
    return torch.Size(_whole(number) for number in found)


def _path(found: object) -> tuple[str | int, ...]:
    if not isinstance(found, tuple) or not all(type(part) in (str, int) for part in found):
        raise _misfit(f"it has {type(found).__name__} where the place of a value belongs")
    return found
