"""The files of a Hugging Face checkpoint, read a region of a tensor at a time."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from shardwise.train.pretrained.files import files_by_tensor
from shardwise.train.pretrained.fitting import not_finite

__all__ = ["PretrainedFiles", "Region"]


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

    def names(self) -> Iterable[str]:
        """Names of all tensors."""
        return self._files.keys()

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


def _is_finite(part: torch.Tensor) -> bool:
    """Whether all values are numbers: the smallest and the largest are, which takes one pass and no second tensor.

    Types of one byte are not looked at: torch has no such pass for them.
    """
    if not part.is_floating_point() or part.element_size() == 1 or part.numel() == 0:
        return True
    return all(math.isfinite(end.item()) for end in torch.aminmax(part))
