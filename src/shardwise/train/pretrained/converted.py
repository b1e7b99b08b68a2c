"""Tensors of a model that transformers builds, read from a checkpoint that transformers can load."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from shardwise.errors import CheckpointError
from shardwise.train.pretrained.conversion import Conversion, Group
from shardwise.train.pretrained.files import SavedTensor
from shardwise.train.pretrained.fitting import missing_tensor, not_convertible, other_dtype, other_shape
from shardwise.train.pretrained.reading import PretrainedFiles, Region

__all__ = ["ConvertedTensors", "unfit_tensors"]

Shape = tuple[int, ...]


class Sources:
    """Which tensors of a checkpoint every tensor of the model is made of."""

    def __init__(self, conversion: Conversion, shapes: Mapping[str, Shape], folder: Path) -> None:
        """``shapes``: of the tensors in the checkpoint."""
        self._conversion, self._folder = conversion, folder
        self._made: dict[str, tuple[Group, Shape]] = {}
        for group in conversion.groups(shapes):
            self._made.update({name: (group, shape) for name, shape in self._shapes_of(group, shapes)})

    def of(self, name: str) -> tuple[str, Group, Shape] | None:
        """A name of the tensor, what it is made of and the shape that it gets; ``None`` where it may be missing.

        Raises:
            CheckpointError: the checkpoint does not have it.
        """
        names = self._conversion.aliases.get(name, (name,))
        found = next((alias for alias in (name, *names) if alias in self._made), None)
        if found is not None:
            return (found, *self._made[found])
        if self._conversion.may_be_missing(name):
            return None
        raise missing_tensor(self._folder, name)

    def _shapes_of(self, group: Group, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Shape]]:
        """Shapes of the model's tensors that a group becomes, found on the meta device without reading or computing."""
        if group.transform is None:
            yield group.first, shapes[group.sources[0][1]]
            return
        try:
            made = self._conversion.convert(group, lambda name: torch.empty(shapes[name], device="meta"))
        except (RuntimeError, ValueError, KeyError, IndexError) as error:
            raise not_convertible(self._folder, group.first, str(error)) from error
        yield from ((name, tuple(tensor.shape)) for name, tensor in made.items())


class ConvertedTensors:
    """A checkpoint's tensors as the model's; of stacked experts only those are read that a rank holds."""

    def __init__(self, files: PretrainedFiles, conversion: Conversion) -> None:
        self._files, self._conversion = files, conversion
        self._sources = Sources(conversion, {name: files.shape(name) for name in files.names()}, files.folder)
        self._last: tuple[str, Mapping[str, torch.Tensor]] = ("", {})
        """The last group that was made whole: its other tensors are asked for next."""

    def fill(self, target: torch.Tensor, region: Region, *, whole: Shape, name: str) -> None:
        """Copy a region of the model's tensor into ``target``.

        Raises:
            CheckpointError: the checkpoint lacks the tensor, has another shape of it, or the tensor is not finite.
        """
        found = self._sources.of(name)
        if found is None:
            return
        own, group, shape = found
        if shape != whole:
            raise other_shape(self._files.folder, name, saved=shape, wanted=whole)
        if group.transform is None:
            target.copy_(self._files.read(group.sources[0][1], region))
            return
        is_of_experts = bool(whole) and group.stack_size == whole[0]
        first = region.start[0] if is_of_experts else 0
        made = self._of_experts(group, region) if is_of_experts else self._whole(group)
        starts = (region.start[0] - first, *region.start[1:]) if whole else ()
        ranges = tuple(slice(start, start + size) for start, size in zip(starts, region.shape, strict=True))
        target.copy_(made[own][ranges])

    def _of_experts(self, group: Group, region: Region) -> Mapping[str, torch.Tensor]:
        """The group made of the experts alone that lie in the region."""
        return self._conversion.convert(group.of_experts(region.start[0], region.shape[0]), self._read)

    def _whole(self, group: Group) -> Mapping[str, torch.Tensor]:
        if self._last[0] != group.first:
            self._last = (group.first, self._conversion.convert(group, self._read))
        return self._last[1]

    def _read(self, name: str) -> torch.Tensor:
        shape = self._files.shape(name)
        return self._files.read(name, Region(start=(0,) * len(shape), shape=shape))


def unfit_tensors(conversion: Conversion, saved: Mapping[str, SavedTensor], folder: Path) -> Iterator[CheckpointError]:
    """Why the checkpoint cannot fill the model, by the headers of its files alone: one error for every tensor."""
    try:
        sources = Sources(conversion, {name: tensor.shape for name, tensor in saved.items()}, folder)
    except CheckpointError as error:
        yield error
        return
    for name, wanted in conversion.tensors.items():
        if name not in conversion.model.all_tied_weights_keys:
            yield from _unfit(name, tuple(wanted.shape), sources, saved, folder)


def _unfit(
    name: str, wanted: Shape, sources: Sources, saved: Mapping[str, SavedTensor], folder: Path
) -> Iterator[CheckpointError]:
    """Why one tensor of the model cannot be filled."""
    try:
        found = sources.of(name)
    except CheckpointError as error:
        yield error
        return
    if found is None:
        return
    _, group, shape = found
    if shape != wanted:
        yield other_shape(folder, name, saved=shape, wanted=wanted)
        return
    types = (other_dtype(folder, source, saved[source].dtype) for _, source in group.sources)
    yield from (error for error in types if error is not None)
