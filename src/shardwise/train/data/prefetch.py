"""Makes the next micro-batches in a thread while the device computes, and measures how long it had to wait anyway."""

import queue
import threading
import time
from collections.abc import Iterator

import torch

from shardwise.train.data.batches import Batch, GlobalBatches
from shardwise.train.data.state import DataState

__all__ = ["PrefetchedBatches"]

POLL_S = 0.1
"""How often a blocked producer looks whether it is still wanted."""


class PrefetchedBatches:
    """The micro-batches of a source, ``depth`` of them ready ahead; depth 0 makes each when it is asked for.

    The state is that of the last micro-batch handed out, not of those made ahead, so a checkpoint forgets nothing.
    """

    def __init__(self, source: GlobalBatches, *, device: torch.device, depth: int = 4) -> None:
        self._source = source
        self._device = device
        self._depth = depth
        self._is_pinned = device.type == "cuda"
        self._state = source.state_dict()
        self._worker: _Producer | None = None
        self.waited_s = 0.0
        """Time that the caller has stood still for data, since the beginning."""
        self.num_batches = 0
        """Micro-batches handed out."""

    @property
    def position(self) -> int:
        """Samples that all ranks together have taken."""
        return self._state["position"]

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        started_s = time.perf_counter()
        batch = self._made_now() if self._depth == 0 else self._made_ahead()
        self.waited_s += time.perf_counter() - started_s
        self.num_batches += 1
        self._state["position"] = batch.next_position
        return batch.on(self._device)

    def state_dict(self) -> DataState:
        """The caller's place in the data."""
        return DataState(**self._state)

    def load_state_dict(self, state: DataState) -> None:
        """Go on where the state was taken; what was made ahead is thrown away."""
        self.close()
        self._source.load_state_dict(state)
        self._state = self._source.state_dict()

    def close(self) -> None:
        """Stop making batches."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None
            self._source.load_state_dict(self._state)

    def _made_now(self) -> Batch:
        batch = next(self._source)
        return batch.pinned() if self._is_pinned else batch

    def _made_ahead(self) -> Batch:
        if self._worker is None:
            self._worker = _Producer(self._source, depth=self._depth, is_pinned=self._is_pinned)
        return self._worker.take()


class _Producer:
    """A thread that fills a queue, and hands its failure to whoever takes from it."""

    def __init__(self, source: GlobalBatches, *, depth: int, is_pinned: bool) -> None:
        self._source = source
        self._is_pinned = is_pinned
        self._ready: queue.Queue[Batch | Exception] = queue.Queue(maxsize=depth)
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardwise-prefetch", daemon=True)
        self._thread.start()

    def take(self) -> Batch:
        """The next batch, or the error that making it met."""
        item = self._ready.get()
        if isinstance(item, Exception):
            raise item
        return item

    def stop(self) -> None:
        """End the thread."""
        self._is_stopped.set()
        self._thread.join()

    def _run(self) -> None:
        item: Batch | Exception
        while not self._is_stopped.is_set():
            try:
                item = next(self._source)
                item = item.pinned() if self._is_pinned else item
            except Exception as error:  # noqa: BLE001 - raised again by take(), in the thread that trains
                item = error
            self._hand_over(item)
            if isinstance(item, Exception):
                return

    def _hand_over(self, item: Batch | Exception) -> None:
        while not self._is_stopped.is_set():
            try:
                self._ready.put(item, timeout=POLL_S)
            except queue.Full:
                continue
            return
