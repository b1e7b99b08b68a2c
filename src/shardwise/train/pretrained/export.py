"""A checkpoint of a run as a Hugging Face checkpoint: file by file, so that memory holds one file and not the model."""

import fcntl
import glob
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from shardwise.errors import CheckpointError
from shardwise.train.checkpoint.reading import PlainReader, load_states
from shardwise.train.failure.full_disk import writing
from shardwise.train.pretrained.companions import Companions
from shardwise.train.pretrained.conversion import Conversion
from shardwise.train.pretrained.fitting import missing_tensor
from shardwise.train.pretrained.names import Piece, saved_names
from shardwise.units import Bytes

__all__ = ["ExportedModel", "export_checkpoint", "unfinished_export"]

MAX_FILE_BYTES = 5_000_000_000
"""The usual size of one part of a checkpoint on the Hugging Face hub."""
MODEL_STATE = "model"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
UNFINISHED = ".unfinished-"
FIX = "make room, or choose another disk for --export; --resume with one more of --steps exports then"
"""A checkpoint that has all its steps is not resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """Config, dtype and tensor names with which a model is exported."""

    config: Mapping[str, object]
    """The fields of ``config.json``."""
    dtype: str = "bfloat16"
    """Type of the written weights."""
    conversion: Conversion | None = None
    """The table of a model that transformers builds; our own decoder has its own names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTensor:
    """A tensor of the model, and how our checkpoint holds it."""

    name: str
    key: str
    """Name of the tensor in our checkpoint."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    """dtype in which the tensor is written."""

    @property
    def nbytes(self) -> Bytes:
        """Bytes of the tensor as it is written."""
        return self.dtype.itemsize * prod(self.shape)


Group = tuple[HeldTensor, ...]
"""Tensors that are written together."""
Tensors = dict[str, torch.Tensor]


def export_checkpoint(
    checkpoint: Path,
    folder: Path,
    model: ExportedModel,
    *,
    companions: Companions | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> tuple[Path, ...]:
    """Write the weights of a checkpoint so that ``AutoModelForCausalLM.from_pretrained`` loads them.

    Needs no process group, whatever layout the checkpoint was written under.

    Args:
        checkpoint: a complete checkpoint, its model's state under the name ``model``.
        folder: does not exist yet.
        model: its config, its dtype and the spelling of its tensors.
        companions: where the tokenizer and the settings of generation lie that go along.
        max_file_bytes: weights are divided into files of at most this size.

    Returns:
        The files with weights.
    """
    if folder.exists():
        raise CheckpointError(f"{folder} exists already", code="output-exists", fix="choose another folder")
    reader = PlainReader(checkpoint)
    groups, as_saved = _groups(reader, model)
    files = list(_files(groups, max_bytes=max_file_bytes))
    total_bytes = sum(tensor.nbytes for group in groups for tensor in group)
    with unfinished_export(folder, needed_bytes=total_bytes) as unfinished:
        weight_map: dict[str, str] = {}
        for number, tensors in enumerate(files, start=1):
            name = "model.safetensors" if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
            written = {key: part.contiguous() for key, part in as_saved(_read(reader, tensors)).items()}
            save_file(written, unfinished / name, metadata={"format": "pt"})
            weight_map.update(dict.fromkeys(written, name))
        if len(files) > 1:
            index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
            _write_json(unfinished / "model.safetensors.index.json", index)
        _write_json(unfinished / "config.json", {**model.config, **_architectures(model.config), "dtype": model.dtype})
        if companions is not None:
            companions.copy_to(unfinished)
    return tuple(sorted(folder.glob("*.safetensors")))


def _architectures(config: Mapping[str, object]) -> dict[str, list[str]]:
    """The class of the model that was trained, by the name that other loaders go by, where the family has one."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES  # noqa: PLC0415 - seconds

    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(str(config.get("model_type")))
    return {"architectures": [name]} if isinstance(name, str) else {}


@contextmanager
def unfinished_export(folder: Path, *, needed_bytes: Bytes) -> Iterator[Path]:
    """A folder to write into that becomes ``folder`` when all of it is written, and is gone when it is not.

    Raises:
        DiskFullError: there was no room for it.
    """
    unfinished = folder.with_name(f"{folder.name}{UNFINISHED}{secrets.token_hex(4)}")
    with writing(folder, needed_bytes=needed_bytes, fix=FIX), ExitStack() as stack:
        _remove_left_behind(folder)
        unfinished.mkdir(parents=True)
        stack.callback(shutil.rmtree, unfinished, ignore_errors=True)
        stack.callback(os.close, _locked(unfinished))
        yield unfinished
        if folder.exists():
            raise CheckpointError(
                f"{folder} was made by another run meanwhile",
                code="output-exists",
                fix="export once more to another folder: --resume with one more of --steps",
            )
        unfinished.rename(folder)


def _locked(folder: Path) -> int:
    """A descriptor whose lock says that somebody writes into a folder; the system lets it go when that process dies."""
    descriptor = os.open(folder, os.O_RDONLY)
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def _remove_left_behind(folder: Path) -> None:
    """Remove what exports of the same name left that were killed; one that another run is writing stays as it is."""
    for path in folder.parent.glob(f"{glob.escape(folder.name)}{UNFINISHED}*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)


def _held(reader: PlainReader) -> dict[str, tuple[int, ...]]:
    """The shapes of the model's tensors in our checkpoint, in the order of their names."""
    prefix = f"{MODEL_STATE}."
    metadata = reader.read_metadata().state_dict_metadata
    return {
        key.removeprefix(prefix): tuple(found.size)
        for key, found in sorted(metadata.items())
        if key.startswith(prefix) and isinstance(found, TensorStorageMetadata)
    }


def _groups(reader: PlainReader, model: ExportedModel) -> tuple[list[Group], Callable[[Tensors], Tensors]]:
    """Tensors that are written together, and the function that spells them as the file does."""
    if model.conversion is None:
        return _own_groups(reader, model.config, DTYPES[model.dtype]), partial(_in_pieces, config=model.config)
    return _converted_groups(reader, model.conversion), model.conversion.as_saved


def _own_groups(reader: PlainReader, config: Mapping[str, object], dtype: torch.dtype) -> list[Group]:
    """Every tensor of our own decoder by itself; a tied head is left out."""
    is_tied = bool(config.get("tie_word_embeddings", False))
    return [
        (HeldTensor(name=name, key=name, shape=shape, dtype=dtype),)
        for name, shape in _held(reader).items()
        if not (is_tied and name == "lm_head.weight")
    ]


def _converted_groups(reader: PlainReader, conversion: Conversion) -> list[Group]:
    """Groups of tensors that ``save_pretrained`` writes together, by the family's own table.

    Raises:
        CheckpointError: our checkpoint lacks a tensor of the model.
    """
    held = _held(reader)

    def found(name: str) -> HeldTensor:
        key = next((alias for alias in (name, *conversion.aliases.get(name, ())) if alias in held), None)
        if key is None:
            raise missing_tensor(reader.checkpoint, name)
        return HeldTensor(name=name, key=key, shape=held[key], dtype=conversion.saved_dtype(name))

    return [tuple(found(name) for name in names) for names in conversion.saved_groups()]


def _files(groups: list[Group], *, max_bytes: Bytes) -> Iterator[Group]:
    """Neighbouring groups, as many as fit into one file."""
    file: list[HeldTensor] = []
    for group in groups:
        if file and sum(tensor.nbytes for tensor in (*file, *group)) > max_bytes:
            yield tuple(file)
            file = []
        file.extend(group)
    if file:
        yield tuple(file)


def _read(reader: PlainReader, tensors: Group) -> Tensors:
    """Whole tensors out of the parts that ranks wrote."""
    values = {f"{MODEL_STATE}.{tensor.key}": torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in tensors}
    load_states(values, reader)
    return {tensor.name: values[f"{MODEL_STATE}.{tensor.key}"] for tensor in tensors}


def _in_pieces(tensors: Mapping[str, torch.Tensor], *, config: Mapping[str, object]) -> Tensors:
    """Tensors of our own decoder cut into the pieces of the other format."""
    model_type = str(config.get("model_type"))
    return {
        piece.name: part
        for name, whole in tensors.items()
        for piece, part in _cut(whole, saved_names(name, tuple(whole.shape), model_type=model_type))
    }


def _cut(whole: torch.Tensor, pieces: tuple[Piece, ...]) -> Iterator[tuple[Piece, torch.Tensor]]:
    per_expert = len(pieces) // max(1, whole.shape[0] if pieces[0].is_stacked else 1)
    for piece in pieces:
        if not piece.is_stacked:
            yield piece, whole
            continue
        expert, row, _ = piece.start
        rows = whole.shape[1] // per_expert
        yield piece, whole[expert, row : row + rows].contiguous().clone()


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
