"""Loads states from a checkpoint through readers that run nothing which it holds."""

import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load

from shardwise.errors import CheckpointError
from shardwise.train.checkpoint.folder import damaged_error
from shardwise.train.checkpoint.metadata import read_metadata, unsafe_error

__all__ = ["PlainReader", "load_states"]


class PlainReader(FileSystemReader):
    """torch's reader with our way of reading ``.metadata``, which is read once: what was looked at is what is used.

    Tensors are read by ``torch.load(weights_only=True)``, as torch's own reader does.
    """

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        self.checkpoint = checkpoint
        self._metadata: Metadata | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The tensors and values that the checkpoint holds.

        Raises:
            CheckpointError: the file is damaged, or names what could run code.
        """
        del args, kwargs  # of the reader that it replaces
        if self._metadata is None:
            self._metadata = read_metadata(self.checkpoint)
        return self._metadata


class PlainPlanner(DefaultLoadPlanner):
    """torch's planner, where values that are no tensors are plain ones as well: torch's unpickles anything."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Take one value over that was saved as bytes."""
        *outer, last = self.mappings[read_item.dest_index.fqn]
        place: Any = self.original_state_dict
        for key in outer:
            place = place[key]
        found, own = torch.load(value, map_location="cpu", weights_only=True), place[last]
        if type(found) is not type(own) and not (isinstance(found, int | float) and isinstance(own, int | float)):
            raise _other_type(read_item.dest_index.fqn, found)
        place[last] = found


def _other_type(name: str, found: object) -> TypeError:
    return TypeError(f"{name} is of type {type(found).__name__}")


def load_states(
    states: dict[str, Any], reader: PlainReader, *, group: ProcessGroup | None = None, is_distributed: bool = False
) -> None:
    """Fill ``states`` in place; called by all ranks where there are several.

    Raises:
        CheckpointError: a file holds something else than it should; every rank has it.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(states, storage_reader=reader, planner=PlainPlanner(), process_group=group, no_dist=not is_distributed)
    except CheckpointException as error:
        raise _read_failure(error, reader.checkpoint) from error


def _read_failure(error: CheckpointException, checkpoint: Path) -> CheckpointError:
    causes = [cause for cause, _ in error.failures.values()]
    ours = next((cause for cause in causes if isinstance(cause, CheckpointError)), None)
    if ours is not None:
        return ours
    if any(isinstance(cause, pickle.UnpicklingError) for cause in causes):
        return unsafe_error(checkpoint, "", "holds something besides tensors and plain values")
    reason = " ".join(f"{type(causes[0]).__name__}: {causes[0]}".split())[:200]
    return damaged_error(checkpoint, "", f"cannot be loaded: {reason}")
