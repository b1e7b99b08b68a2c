"""The history of CUDA's allocator, from before the model is built to the end of an early step, for `shardwise profile`.

``torch.cuda.memory._record_memory_history`` and ``_dump_snapshot`` are the documented way (PyTorch's "Understanding
CUDA Memory Usage"), underscores and all. Recording slows every allocation, so it ends when the file is written.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from shardwise.measure.trace_files import SNAPSHOT_FOLDER
from shardwise.train.torch_private import dump_allocator_history, record_allocator_history

RECORDED_STEPS = 3
"""The optimizer's states are there from the first step on, and DDP makes its buckets anew in the second."""
MOST_EVENTS = 1_000_000
"""Events that are kept; beyond these the oldest are lost. A step of a large model has tens of thousands."""


class AllocatorHistory:
    """Records this rank's allocator until its file is written; does nothing where it was not asked to."""

    def __init__(self, folder: Path, *, is_wanted: bool, last_step: int) -> None:
        self._path = folder / SNAPSHOT_FOLDER / f"rank-{dist.get_rank():04d}.pickle"
        self._is_recording, self._last_step = is_wanted, last_step
        self._num_steps = 0
        if is_wanted:
            record_allocator_history(stacks="python", max_entries=MOST_EVENTS)

    def after_step(self, step: int) -> None:
        """A step is done; after a few of them the file is written."""
        self._num_steps += 1
        if self._num_steps >= RECORDED_STEPS or step >= self._last_step:
            self.write()

    def write(self) -> None:
        """Write what was recorded, once; also when memory has run out, which is when it is most wanted."""
        if self._is_recording:
            self._is_recording = False
            self._path.parent.mkdir(exist_ok=True)
            dump_allocator_history(str(self._path))
            record_allocator_history(enabled=None)


@contextmanager
def allocator_history(folder: Path, *, is_wanted: bool, last_step: int) -> Iterator[AllocatorHistory]:
    """Record while the model is built and trained; what a failure leaves is written as well."""
    history = AllocatorHistory(folder, is_wanted=is_wanted, last_step=last_step)
    try:
        yield history
    finally:
        history.write()
