"""Pretrained weights into sharded parameters: every rank reads its own slices of the files and nothing else."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.distributed.tensor import DTensor

from shardwise.train.nf4 import QuantisedLinear, pack
from shardwise.train.pretrained.files import files_by_tensor, read_config
from shardwise.train.pretrained.fitting import missing_tensor, not_finite, other_shape
from shardwise.train.pretrained.names import Piece, pieces_of

__all__ = ["PretrainedFiles", "load_pretrained", "load_quantised"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Where this rank's part of a tensor lies in the whole one."""

    start: tuple[int, ...]
    shape: tuple[int, ...]


class PretrainedFiles:
    """The tensors of a folder of safetensors files, by name; read from the map of the file, never as a whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bytes_read = 0
        """Bytes of all slices taken so far."""
        self._files = files_by_tensor(folder)
        self._opened: dict[Path, Any] = {}

    def has(self, name: str) -> bool:
        """Whether there is a tensor of that name."""
        return name in self._files

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return tuple(self._slice(name).get_shape())

    def read(self, name: str, region: Region) -> torch.Tensor:
        """Part of a tensor.

        Raises:
            CheckpointError: it holds infinities or values that are no numbers.
        """
        ranges = tuple(slice(first, first + size) for first, size in zip(region.start, region.shape, strict=True))
        part: torch.Tensor = self._slice(name)[ranges] if ranges else self._slice(name)[...]
        self.bytes_read += part.numel() * part.element_size()
        if not _is_finite(part):
            raise not_finite(self._files[name], name)
        return part

    def _slice(self, name: str) -> Any:
        path = self._files[name]
        if path not in self._opened:
            self._opened[path] = safe_open(path, framework="pt")
        return self._opened[path].get_slice(name)


def load_pretrained(tensors: Iterable[tuple[str, torch.Tensor]], folder: Path) -> PretrainedFiles:
    """Fill parameters and buffers in place from a Hugging Face checkpoint.

    Args:
        tensors: names of the whole model and this rank's tensors; a DTensor under any layout is filled with its own
            part, a plain tensor with all of it. Values are cast to each tensor's own type.
        folder: holds ``*.safetensors``, with an index when there are several.

    Returns:
        The files, which say how many bytes this rank read.

    Raises:
        CheckpointError: a tensor is missing in the checkpoint, has another shape there, or is not finite.
    """
    files = PretrainedFiles(folder)
    is_tied = bool(read_config(folder).get("tie_word_embeddings", True))
    with torch.no_grad():
        for name, tensor in tensors:
            pieces = pieces_of(name, tuple(tensor.shape), has=files.has, is_tied=is_tied)
            if not pieces:
                raise missing_tensor(folder, name)
            for target, region in _parts(tensor):
                _fill(target, region, whole=tuple(tensor.shape), name=name, pieces=pieces, files=files)
    return files


def load_quantised(layers: Iterable[tuple[str, QuantisedLinear]], folder: Path) -> PretrainedFiles:
    """Fill 4-bit layers from a Hugging Face checkpoint of dense weights: each rank reads and packs its own rows.

    Args:
        layers: names in the whole model and the layers, sharded or not.
        folder: as for :func:`load_pretrained`.

    Raises:
        CheckpointError: a matrix is missing in the checkpoint, has another shape there, or is not finite.
    """
    files = PretrainedFiles(folder)
    with torch.no_grad():
        for name, layer in layers:
            pieces = pieces_of(f"{name}.weight", (layer.out_features, layer.in_features), has=files.has)
            if not pieces:
                raise missing_tensor(folder, f"{name}.weight")
            whole = (layer.out_features, layer.in_features)
            for target, packed in _parts(layer.weight):
                region = Region(start=(packed.start[0], 0), shape=(packed.shape[0], layer.in_features))
                dense = torch.empty(region.shape, device=target.device)
                _fill(dense, region, whole=whole, name=f"{name}.weight", pieces=pieces, files=files)
                target.copy_(pack(dense).view(target.dtype))
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


def _is_finite(part: torch.Tensor) -> bool:
    """Whether all values are numbers: the smallest and the largest are, which takes one pass and no second tensor.

    Types of one byte are not looked at: torch has no such pass for them.
    """
    if not part.is_floating_point() or part.element_size() == 1 or part.numel() == 0:
        return True
    return all(math.isfinite(end.item()) for end in torch.aminmax(part))
