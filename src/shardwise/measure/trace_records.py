"""One rank's trace as records: what its device did, what its host marked, and who launched what."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeGuard

from shardwise.measure.kernel_names import KernelFamily
from shardwise.step.inventory import CollectiveKind
from shardwise.units import Bytes, Flop, Seconds

LATEST_US = 1e18
"""Thirty thousand years; infinities and what is no number are not below it."""
MOST_RANKS = 2**31
WorkKind = Literal["kernel", "copy", "host"]
"""``host`` is work of a rank without a device: operators, and the ranges of gloo on its own threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationFacts:
    """What the profiler wrote beside a collective; what it left out is ``None`` or empty."""

    kind: CollectiveKind | None
    """The collective as torch has named it since version 2.2."""
    payload_bytes: Bytes | None
    """Bytes of the larger of the collective's input and output."""
    group_size: int | None
    group_name: str
    group_description: str
    """The axis as torch was told it, such as ``mesh_dp_shard``."""
    group_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One kernel, copy or host operator from its start to its end."""

    name: str
    kind: WorkKind
    family: KernelFamily
    stream: int
    start_s: Seconds
    """Seconds since the first event of the file."""
    end_s: Seconds
    launch_s: Seconds | None
    """When the host began the call that issued it; ``None`` when the trace does not say."""
    launch_thread: int | None
    is_graph_launch: bool
    """Whether a CUDA graph issued it."""
    communication: CommunicationFacts | None
    flop: Flop | None
    """FLOP by the recorded shapes of the operator that launched the kernel; ``None`` without shapes."""

    @property
    def duration_s(self) -> Seconds:
        """Time from start to end."""
        return self.end_s - self.start_s

    @property
    def issued_s(self) -> Seconds:
        """When the host issued it; without a device, when it ran."""
        return self.start_s if self.launch_s is None else self.launch_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A named range of the host, such as ``ProfilerStep#3`` or ``FSDP::all_gather (layers.0)``."""

    name: str
    thread: int
    start_s: Seconds
    end_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """Everything of one file that is looked at."""

    path: Path
    rank: int
    world_size: int | None
    device_name: str
    """Name of the device as the profiler writes it; empty when it does not."""
    backend: str
    works: tuple[Work, ...]
    """The kernels and copies of the device, sorted by start."""
    marks: tuple[Mark, ...]
    """The ranges that the host marked, sorted by start."""
    has_device: bool
    """False for a trace of the host alone; then operators and gloo ranges are the work."""
    num_events: int
    warnings: tuple[str, ...]
    """Sentences on what could not be read."""
    step_s: Seconds | None = None
    """Duration of the one step that the trace holds from time 0 on; ``None`` where the trace does not say."""


def is_moment(value: object) -> TypeGuard[float]:
    """Whether a value is a number of microseconds that a clock can have counted."""
    return isinstance(value, int | float) and abs(value) < LATEST_US


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value is a number of ranks, or of one rank."""
    return isinstance(value, int) and 0 <= value < MOST_RANKS
