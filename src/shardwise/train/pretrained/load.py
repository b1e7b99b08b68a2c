"""Pretrained weights into sharded parameters: every rank reads its own slices of the files and nothing else."""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import torch
from torch.distributed.tensor import DTensor

from shardwise.train.nf4 import QuantisedLinear, pack
from shardwise.train.pretrained.conversion import Conversion
from shardwise.train.pretrained.converted import ConvertedTensors
from shardwise.train.pretrained.files import read_config
from shardwise.train.pretrained.fitting import missing_tensor, other_shape
from shardwise.train.pretrained.names import Piece, pieces_of
from shardwise.train.pretrained.reading import PretrainedFiles, Region

__all__ = ["load_pretrained", "load_quantised"]


class ModelTensors(Protocol):
    """The tensors of a checkpoint, by their names in the model."""

    def fill(self, target: torch.Tensor, region: Region, *, whole: tuple[int, ...], name: str) -> None:
        """Copy a region of a tensor of that whole shape into ``target``."""


class NamedTensors:
    """Tensors of a checkpoint whose family our own decoder trains."""

    def __init__(self, files: PretrainedFiles) -> None:
        self._files = files
        self._is_tied = bool(read_config(files.folder).get("tie_word_embeddings", True))

    def fill(self, target: torch.Tensor, region: Region, *, whole: tuple[int, ...], name: str) -> None:
        """Copy the part of each piece that lies in the region."""
        pieces = pieces_of(name, whole, has=self._files.has, is_tied=self._is_tied)
        if not pieces:
            raise missing_tensor(self._files.folder, name)
        _fill(target, region, whole=whole, name=name, pieces=pieces, files=self._files)


def model_tensors(files: PretrainedFiles, conversion: Conversion | None) -> ModelTensors:
    """The files by our decoder's names, or as the table of a model of transformers says."""
    return NamedTensors(files) if conversion is None else ConvertedTensors(files, conversion)


def load_pretrained(
    tensors: Iterable[tuple[str, torch.Tensor]], folder: Path, conversion: Conversion | None = None
) -> PretrainedFiles:
    """Fill parameters and buffers in place from a Hugging Face checkpoint.

    Args:
        tensors: names of the whole model and this rank's tensors; a DTensor under any layout is filled with its own
            part, a plain tensor with all of it. Values are cast to each tensor's own type.
        folder: holds ``*.safetensors``, with an index when there are several.
        conversion: the table of a model that transformers builds; without one the names are our own decoder's.

    Returns:
        The files, which say how many bytes this rank read.

    Raises:
        CheckpointError: a tensor is missing in the checkpoint, has another shape there, or is not finite.
    """
    files = PretrainedFiles(folder)
    held = model_tensors(files, conversion)
    with torch.no_grad():
        for name, tensor in tensors:
            for target, region in _parts(tensor):
                held.fill(target, region, whole=tuple(tensor.shape), name=name)
    return files


def load_quantised(
    layers: Iterable[tuple[str, QuantisedLinear]], folder: Path, conversion: Conversion | None = None
) -> PretrainedFiles:
    """Fill 4-bit layers from a Hugging Face checkpoint of dense weights: each rank reads and packs its own part.

    Args:
        layers: names in the whole model and the layers, sharded or not.
        folder: as for :func:`load_pretrained`.
        conversion: as for :func:`load_pretrained`.

    Raises:
        CheckpointError: a matrix is missing in the checkpoint, has another shape there, or is not finite.
    """
    files = PretrainedFiles(folder)
    held = model_tensors(files, conversion)
    with torch.no_grad():
        for name, layer in layers:
            whole = (layer.out_features, layer.in_features)
            for target, packed in _parts(layer.weight):
                columns = layer.own_in_features
                first = packed.start[1] // packed.shape[1] * columns  # parts of rows are packed apart, equally long
                region = Region(start=(packed.start[0], first), shape=(packed.shape[0], columns))
                dense = torch.empty(region.shape, device=target.device)
                held.fill(dense, region, whole=whole, name=f"{name}.weight")
                target.copy_(pack(dense, layer.rows_group).view(target.dtype))
    return files


def _fill(
    target: torch.Tensor,
    region: Region,
    *,
    whole: tuple[int, ...],
    name: str,
    pieces: tuple[Piece, ...],
    files: PretrainedFiles,
) -> None:
    """Copy what of each piece lies in ``region`` of the whole tensor to its place in ``target``."""
    for piece in pieces:
        if not piece.start:
            _require_shape(name, whole, files.shape(piece.name), files.folder)
            target.copy_(files.read(piece.name, region))
            continue
        if not region.start[0] <= piece.start[0] < region.start[0] + region.shape[0]:
            continue
        shape = files.shape(piece.name)
        _require_shape(name, whole[2:], shape[1:], files.folder)
        first = [max(a, b) for a, b in zip(region.start[1:], piece.start[1:], strict=True)]
        ends = [
            min(start + size, begin + length)
            for start, size, begin, length in zip(
                region.start[1:], region.shape[1:], piece.start[1:], shape, strict=True
            )
        ]
        if any(end <= begin for begin, end in zip(first, ends, strict=True)):
            continue
        sizes = tuple(end - begin for begin, end in zip(first, ends, strict=True))
        inside = tuple(begin - start for begin, start in zip(first, piece.start[1:], strict=True))
        place = [slice(a - b, a - b + size) for a, b, size in zip(first, region.start[1:], sizes, strict=True)]
        part = files.read(piece.name, Region(start=inside, shape=sizes))
        target[piece.start[0] - region.start[0], place[0], place[1]].copy_(part)


def _parts(tensor: torch.Tensor) -> list[tuple[torch.Tensor, Region]]:
    """This rank's storage, and where it lies in the whole tensor."""
    if not isinstance(tensor, DTensor):
        return [(tensor, Region(start=(0,) * tensor.dim(), shape=tuple(tensor.shape)))]
    local = tensor.to_local()
    if local.numel() == 0:
        return []
    # What torch.distributed.checkpoint asks a tensor for; right for every placement FSDP2 and tensor parallelism make.
    (chunk,) = tensor.__create_chunk_list__()
    return [(local, Region(start=tuple(chunk.offsets), shape=tuple(chunk.sizes)))]


def _require_shape(name: str, model: tuple[int, ...], saved: tuple[int, ...], folder: Path) -> None:
    if model != saved:
        raise other_shape(folder, name, saved=saved, wanted=model)
