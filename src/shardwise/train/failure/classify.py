"""What an exception of a rank means: whether it is a cause, or the echo of another rank's end."""

from collections.abc import Iterator

import torch

from shardwise.errors import ShardwiseError
from shardwise.train.failure.full_disk import is_full_disk
from shardwise.train.failure.record import FailureKind
from shardwise.train.failure.threads import NO_THREAD

__all__ = ["LossError", "classify"]

CPU_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "std::bad_alloc")
TIMED_OUT = ("timed out waiting", "timeout", "watchdog caught collective")
PEER_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "remote process exited",
    "ncclremoteerror",
    "socket closed",
    "peer closed",
    "application timeout caused pair closure",
)
PHRASES: tuple[tuple[FailureKind, tuple[str, ...]], ...] = (
    ("out-of-memory", CPU_OUT_OF_MEMORY),
    ("hang", TIMED_OUT),
    ("peer-lost", PEER_LOST),
    ("no-thread", NO_THREAD),
)
"""Time-outs before lost peers: gloo closes a pair when a wait runs out, and then says both. A connection that fails may
say of its socket what a thread says that does not start."""


class LossError(ShardwiseError):
    """A loss that is no number any more."""

    exit_code = 1


def classify(error: BaseException) -> FailureKind:
    """The kind of failure that an exception is; looked for along its causes."""
    for link in _links(error):
        kind = _kind(link)
        if kind is not None:
            return kind
    return "exception"


def _kind(error: BaseException) -> FailureKind | None:
    if isinstance(error, ShardwiseError):
        return _kind_of_ours(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "out-of-memory"
    if is_full_disk(error):
        return "disk-full"
    if isinstance(error, RuntimeError | ConnectionError):
        text = str(error).lower()
        return next((kind for kind, words in PHRASES if any(phrase in text for phrase in words)), None)
    return None


def _kind_of_ours(error: ShardwiseError) -> FailureKind:
    if isinstance(error, LossError):
        return "loss"
    return "disk-full" if error.code in ("checkpoint-disk-full", "train-disk-full") else "refused"


def _links(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__
