"""Saves the state of a run with ``torch.distributed.checkpoint``, at once or in the background, and loads it again."""

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.staging import BlockingAsyncStager, DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from shardwise.errors import CheckpointError
from shardwise.train.checkpoint.folder import Checkpoint, CheckpointFolder, damaged_error, find_checkpoint
from shardwise.train.checkpoint.lineage import FACTS, Lineage
from shardwise.train.checkpoint.reading import PlainReader, load_states
from shardwise.train.checkpoint.sizes import SAME_MODEL_FIX, fix_of_shapes
from shardwise.train.checkpoint.verify import Damage, first_damage
from shardwise.train.decoder.config import is_supported
from shardwise.train.failure.full_disk import FIX, LIMIT_FIX, is_full_disk, no_room, writing
from shardwise.units import format_decimal_bytes

__all__ = ["CheckpointRequest", "DistributedCheckpointer"]

MODEL_PREFIX = "model."
"""Prefix of the model's tensors in a checkpoint, beside which the optimizer's tensors stand."""


class Stateful(Protocol):
    """Something whose state a checkpoint holds."""

    def state_dict(self) -> dict[str, Any]:
        """The state; tensors in it may be DTensors."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take a loaded state over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRequest:
    """When and where states are saved, and what the run goes on from."""

    folder: Path | None = None
    every_steps: int = 0
    """Steps from one checkpoint to the next; 0 saves only at the end."""
    is_async: bool = False
    """Copy the state to host memory and write it while training goes on."""
    num_kept: int = 2
    resume_from: Path | None = None
    """A run folder, a folder of checkpoints, or one checkpoint."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Facts that every checkpoint holds of this run besides its step, as a JSON document."""
    lineage: Lineage = field(default_factory=Lineage)
    """The life of the run that is going on, and the lives before it."""
    require_held: Callable[[], None] = lambda: None
    """Raises when the folder has come to belong to another run."""


class DistributedCheckpointer:
    """The checkpoints of one run, as its ranks see them; every method is called by all ranks at the same step.

    Saves use a gloo group of their own: a save in the background must never meet a collective of the training step on
    the same group, where the two would be taken for each other.
    """

    def __init__(self, request: CheckpointRequest) -> None:
        self._request = request
        self._is_distributed = dist.is_available() and dist.is_initialized()
        self._rank = dist.get_rank() if self._is_distributed else 0
        self._group = dist.new_group(backend="gloo") if self._is_distributed else None
        self._folder = CheckpointFolder(request.folder, request.lineage) if request.folder is not None else None
        self._pending: Future[None] | None = None
        self._last_step: int | None = None
        self._best_step: int | None = None
        self._stager: BlockingAsyncStager | DefaultStager | None = None
        self._publisher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="shardwise-checkpoint")

    def load(self, states: Mapping[str, Stateful]) -> int:
        """Load the checkpoint to resume from into ``states``; returns the steps it had done, 0 when there is none."""
        if self._request.resume_from is None:
            self._follow(None)
            return 0
        checkpoint = find_checkpoint(self._request.resume_from)
        reader = PlainReader(checkpoint.path)
        metadata = self._verified(checkpoint, reader)
        template: dict[str, Any] = {name: state.state_dict() for name, state in states.items()}
        _require_same_tensors(template, metadata, checkpoint, facts=self._request.facts)
        template = {name: _as_saved(name, state, metadata) for name, state in template.items()}
        load_states(template, reader, group=self._group, is_distributed=self._is_distributed)
        for name, state in states.items():
            state.load_state_dict(template[name])
        self._follow(checkpoint.path)
        self._last_step = checkpoint.step
        return checkpoint.step

    def _follow(self, resumed: Path | None) -> None:
        """Set checkpoints that did not lead here apart, once all ranks have loaded what they go on from."""
        if self._is_distributed:
            dist.barrier(group=self._group)
        if self._rank == 0 and self._folder is not None and self._request.lineage.life:
            self._request.require_held()
            with writing(self._folder.path):
                self._folder.follow(resumed)

    def is_due(self, step: int) -> bool:
        """Whether :meth:`after_step` will save this step."""
        every_steps = self._request.every_steps
        return self._folder is not None and every_steps > 0 and step % every_steps == 0

    def keep_best(self, step: int) -> None:
        """Keep the checkpoint of this step, which exists or is saved next, whatever other checkpoints are deleted."""
        self._best_step = step
        if self._rank == 0 and self._folder is not None and self._folder.path.is_dir():
            with writing(self._folder.path):
                self._folder.mark_best(step)

    def after_step(self, step: int, states: Mapping[str, Stateful], *, is_best: bool = False) -> None:
        """Save when it is time to, or where the step is the best so far.

        Raises:
            CheckpointError: a save failed, this one or one in the background; the checkpoint before is still there.
        """
        if self._pending is not None and self._pending.done():
            self._wait()
        if is_best and self._folder is not None:
            self._best_step = step
        if self.is_due(step) or (is_best and self._folder is not None):
            self.save(step, states)

    def finish(self, step: int, states: Mapping[str, Stateful]) -> None:
        """Save the last step unless it is saved already, and return when everything is durable."""
        if self._folder is not None and step != self._last_step:
            self.save(step, states)
        self._wait()
        if self._stager is not None:
            self._stager.close()
            self._stager = None

    def save(self, step: int, states: Mapping[str, Stateful]) -> None:
        """Begin to save; a save that is still being written is waited for first."""
        folder = self._folder
        if folder is None:
            return
        self._wait()
        values: dict[str, Any] = {name: state.state_dict() for name, state in states.items()}
        path = self._begin(folder, step, values)
        self._last_step = step
        written = self._write(path, values)
        self._pending = self._publisher.submit(self._publish, step, written)
        if not self._request.is_async:
            self._wait()

    def _verified(self, checkpoint: Checkpoint, reader: PlainReader) -> Metadata:
        """Read what a checkpoint holds, after every tensor in it was compared with its checksum by one of the ranks.

        Raises:
            CheckpointError: a file is damaged, or could run code; the same one on all ranks.
        """
        metadata = reader.read_metadata()
        world_size = dist.get_world_size() if self._is_distributed else 1
        own = first_damage(checkpoint.path, metadata.storage_data, rank=self._rank, world_size=world_size)
        found: list[Damage | None] = [own] * world_size
        if self._is_distributed:
            dist.all_gather_object(found, own, group=self._group)
        damage = next((damage for damage in found if damage is not None), None)
        if damage is not None:
            raise damaged_error(checkpoint.path, damage.file, damage.reason)
        return metadata

    def _begin(self, folder: CheckpointFolder, step: int, values: dict[str, Any]) -> Path:
        """The folder to write into, made by rank 0; refused on all ranks when the disk is too small for it."""
        answer = ["", ""]
        if self._rank == 0:
            self._request.require_held()
            try:
                answer[0] = str(folder.begin(step))
                answer[1] = _shortage(folder.path, values)
                world_size = dist.get_world_size() if self._is_distributed else 1
                facts = {"step": step, "world_size": world_size, **self._request.facts}
                facts["lineage"] = self._request.lineage.to_json()
                (Path(answer[0]) / FACTS).write_text(json.dumps(facts), encoding="utf-8")
            except OSError as error:
                answer[1] = f"{error.strerror or error}"
        if self._is_distributed:
            dist.broadcast_object_list(answer, src=0, group=self._group)
        if answer[1]:
            raise CheckpointError(
                f"the checkpoint of step {step} cannot be written to {folder.path}: {answer[1]}",
                code="checkpoint-disk-full",
                fix="make room or keep fewer checkpoints, then resume the run",
            )
        return Path(answer[0])

    def _write(self, path: Path, values: dict[str, Any]) -> "Future[Any]":
        """Write this rank's share now, or copy it to host memory and write that in a thread."""
        writer = StateWriter(path)
        if self._request.is_async and self._is_distributed:
            if self._stager is None:
                self._stager = _make_stager()
            response = async_save(values, storage_writer=writer, process_group=self._group, async_stager=self._stager)
            return response if isinstance(response, Future) else response.upload_completion
        done: Future[Any] = Future()
        try:
            save(values, storage_writer=writer, process_group=self._group, no_dist=not self._is_distributed)
        except CheckpointException as error:
            done.set_exception(error)
        else:
            done.set_result(None)
        return done

    def _publish(self, step: int, written: "Future[Any]") -> None:
        """Runs in a thread: wait for the writing of all ranks, then let rank 0 make it visible."""
        written.result()
        if self._rank == 0 and self._folder is not None:
            self._request.require_held()
            self._folder.publish(step, require_held=self._request.require_held)
            if step == self._best_step:
                self._folder.mark_best(step)
            self._folder.prune(self._request.num_kept)

    def _wait(self) -> None:
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        try:
            pending.result()
        except (CheckpointException, OSError) as error:
            raise _write_failure(error, folder=self._request.folder) from error


def _make_stager() -> BlockingAsyncStager | DefaultStager:
    """Copies states to host memory: from a GPU into pinned memory that is kept for the next save.

    Not ``DefaultStager`` there: in torch 2.11 it forgets after its first save how to copy anything but tensors
    (``KeyError: <class 'type'>``).
    """
    if torch.cuda.is_available():
        return BlockingAsyncStager(cache_staged_state_dict=True)
    options = StagingOptions(
        use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
    )
    return DefaultStager(options)


def _shortage(path: Path, values: dict[str, Any]) -> str:
    """A sentence on what the disk lacks for the tensors this rank knows of; nothing when they fit."""
    needed_bytes = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(values))
    free_bytes = shutil.disk_usage(path).free
    if needed_bytes <= free_bytes:
        return ""
    return f"it takes {format_decimal_bytes(needed_bytes)}, and {format_decimal_bytes(free_bytes)} are free"


def _tensors(values: object) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, dict):
        return [tensor for value in values.values() for tensor in _tensors(value)]
    return []


def _write_failure(error: CheckpointException | OSError, *, folder: Path | None) -> CheckpointError:
    """One sentence for what stopped a save, whichever rank it stopped."""
    causes = list(error.failures.items()) if isinstance(error, CheckpointException) else [(0, (error, None))]
    rank, (cause, _) = causes[0]
    newest = CheckpointFolder(folder).newest() if folder is not None else None
    kept = f"; {newest.path.name} is whole and kept" if newest is not None else ""
    full = _full_disk(cause)
    if full is not None and folder is not None:
        takes = f", and one takes {format_decimal_bytes(newest.size_bytes)}" if newest is not None else ""
        why, fix = no_room(folder, full)
        head = "a file would become too large" if fix == LIMIT_FIX else "the disk is full"
        return CheckpointError(
            f"rank {rank} could not write its part of a checkpoint to {folder}: {head}{kept}; {why}{takes}",
            code="checkpoint-disk-full",
            fix=fix if fix != FIX else "make room or keep fewer checkpoints, then resume the run",
        )
    return CheckpointError(
        f"rank {rank} could not write its part of a checkpoint to {folder}: {cause}{kept}",
        code="checkpoint-write",
        fix="look at the log of that rank, then resume the run",
    )


def _full_disk(error: BaseException) -> BaseException | None:
    """The error of a write that found no room: ``error`` itself, or an error that it came from."""
    links = (error, error.__cause__, error.__context__)
    return next((link for link in links if link is not None and is_full_disk(link)), None)


def _system_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class StateWriter(FileSystemWriter):
    """torch's writer, which says on the rank that writes what stopped it: other ranks may have other limits."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write this rank's share."""
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            if not is_full_disk(error):
                raise
            number = errno.EFBIG if no_room(Path(self.path), error)[1] == LIMIT_FIX else errno.ENOSPC
            raise _system_error(number) from error


def _require_same_tensors(
    template: dict[str, Any], metadata: Metadata, checkpoint: Checkpoint, *, facts: Mapping[str, Any]
) -> None:
    """Refuse a checkpoint of another model by name and shape, before anything is read."""
    saved = metadata.state_dict_metadata
    named = sorted(_named_tensors(template), key=lambda pair: not pair[0].startswith(MODEL_PREFIX))
    for name, tensor in named:
        found = saved.get(name)
        if not isinstance(found, TensorStorageMetadata):
            raise CheckpointError(
                f"{checkpoint.path} has no tensor {name}, which this run needs",
                code="checkpoint-mismatch",
                fix=_fix_of(name, metadata, facts),
            )
        if tuple(found.size) != tuple(tensor.shape):
            raise CheckpointError(
                f"{name} is {tuple(found.size)} in {checkpoint.path} and {tuple(tensor.shape)} in this run",
                code="checkpoint-mismatch",
                fix=_fix_of(name, metadata, facts),
            )


def _as_saved(name: str, state: dict[str, Any], metadata: Metadata) -> dict[str, Any]:
    """The state without counts that the checkpoint does not hold because it was made before there were any."""
    saved = metadata.state_dict_metadata
    return {
        key: value for key, value in state.items() if not isinstance(value, int | float) or f"{name}.{key}" in saved
    }


def _fix_of(name: str, metadata: Metadata, facts: Mapping[str, Any]) -> str:
    """The sizes to write where a tensor of our decoder differs; an optimizer's tensors are those of its model."""
    job = facts.get("job")
    if not isinstance(job, Mapping) or not name.startswith(MODEL_PREFIX):
        return SAME_MODEL_FIX
    fields = json.loads(job["model_config_json"])
    if not is_supported(fields):
        return SAME_MODEL_FIX
    held = {
        key.removeprefix(MODEL_PREFIX): tuple(found.size)
        for key, found in metadata.state_dict_metadata.items()
        if key.startswith(MODEL_PREFIX) and isinstance(found, TensorStorageMetadata)
    }
    return fix_of_shapes(held, fields)


def _named_tensors(values: object, prefix: str = "") -> list[tuple[str, torch.Tensor]]:
    if isinstance(values, torch.Tensor):
        return [(prefix, values)]
    if isinstance(values, dict):
        inner = f"{prefix}." if prefix else ""
        return [pair for key, value in values.items() for pair in _named_tensors(value, f"{inner}{key}")]
    return []
