"""A checkpoint of a run as a Hugging Face checkpoint: file by file, so that memory holds one file and not the model."""

import fcntl
import glob
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from shardwise.errors import CheckpointError
from shardwise.train.checkpoint.reading import PlainReader, load_states
from shardwise.train.failure.full_disk import writing
from shardwise.train.pretrained.names import Piece, saved_names
from shardwise.units import Bytes

__all__ = ["export_checkpoint", "unfinished_export"]

MAX_FILE_BYTES = 5_000_000_000
"""The usual size of one part of a checkpoint on the Hugging Face hub."""
MODEL_STATE = "model"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
UNFINISHED = ".unfinished-"
FIX = "make room, or choose another disk for --export; --resume with one more of --steps exports then"
"""A checkpoint that has all its steps is not resumed."""
BESIDE = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
"""Files of the checkpoint a run began with that belong to the one it ends with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """A tensor of the model in our checkpoint, and what it is called in the other."""

    name: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def num_params(self) -> int:
        """Elements of the tensor."""
        return prod(self.shape)


def export_checkpoint(
    checkpoint: Path,
    folder: Path,
    *,
    config: Mapping[str, object],
    dtype: str = "bfloat16",
    beside: Path | None = None,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> tuple[Path, ...]:
    """Write the weights of a checkpoint so that ``AutoModelForCausalLM.from_pretrained`` loads them.

    Needs no process group, whatever layout the checkpoint was written under.

    Args:
        checkpoint: a complete checkpoint, its model's state under the name ``model``.
        folder: does not exist yet.
        config: the fields of ``config.json``.
        dtype: type of the written weights.
        beside: a folder whose tokenizer and generation settings go along.
        max_file_bytes: weights are divided into files of at most this size.

    Returns:
        The files with weights.
    """
    if folder.exists():
        raise CheckpointError(f"{folder} exists already", code="output-exists", fix="choose another folder")
    reader = PlainReader(checkpoint)
    tensors = _tensors(reader, config)
    item_bytes = DTYPES[dtype].itemsize
    groups = list(_groups(tensors, max_params=max_file_bytes // item_bytes))
    total_bytes = item_bytes * sum(tensor.num_params for tensor in tensors)
    with unfinished_export(folder, needed_bytes=total_bytes) as unfinished:
        weight_map: dict[str, str] = {}
        for number, group in enumerate(groups, start=1):
            name = "model.safetensors" if len(groups) == 1 else f"model-{number:05d}-of-{len(groups):05d}.safetensors"
            written = _read_group(reader, group, DTYPES[dtype])
            save_file(written, unfinished / name, metadata={"format": "pt"})
            weight_map.update(dict.fromkeys(written, name))
        if len(groups) > 1:
            index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
            _write_json(unfinished / "model.safetensors.index.json", index)
        _write_json(unfinished / "config.json", {**config, **_architectures(config), "dtype": dtype})
        for extra in (beside / name for name in BESIDE) if beside is not None else ():
            if extra.is_file():
                shutil.copy2(extra, unfinished / extra.name)
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


def _tensors(reader: PlainReader, config: Mapping[str, object]) -> list[SavedTensor]:
    """The tensors of the model in the order of their names; a tied head is left out."""
    prefix = f"{MODEL_STATE}."
    is_tied = bool(config.get("tie_word_embeddings", False))
    metadata = reader.read_metadata().state_dict_metadata
    return [
        SavedTensor(
            name=key,
            shape=tuple(found.size),
            pieces=saved_names(key.removeprefix(prefix), tuple(found.size), model_type=str(config.get("model_type"))),
        )
        for key, found in sorted(metadata.items())
        if key.startswith(prefix)
        and isinstance(found, TensorStorageMetadata)
        and not (is_tied and key == f"{prefix}lm_head.weight")
    ]


def _groups(tensors: list[SavedTensor], *, max_params: int) -> Iterator[list[SavedTensor]]:
    """Neighbouring tensors, as many as fit into one file."""
    group: list[SavedTensor] = []
    for tensor in tensors:
        if group and sum(other.num_params for other in group) + tensor.num_params > max_params:
            yield group
            group = []
        group.append(tensor)
    if group:
        yield group


def _read_group(reader: PlainReader, group: list[SavedTensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Whole tensors out of the parts that ranks wrote, cut into the pieces of the other format."""
    values = {tensor.name: torch.empty(tensor.shape, dtype=dtype) for tensor in group}
    load_states(values, reader)
    return {
        piece.name: part for tensor in group for piece, part in zip(tensor.pieces, _cut(tensor, values), strict=True)
    }


def _cut(tensor: SavedTensor, values: dict[str, torch.Tensor]) -> Iterator[torch.Tensor]:
    whole = values[tensor.name]
    per_expert = len(tensor.pieces) // max(1, tensor.shape[0] if tensor.pieces[0].is_stacked else 1)
    for piece in tensor.pieces:
        if not piece.is_stacked:
            yield whole
            continue
        expert, row, _ = piece.start
        rows = tensor.shape[1] // per_expert
        yield whole[expert, row : row + rows].contiguous().clone()


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
