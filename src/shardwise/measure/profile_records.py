"""What a profile reports of one or many ranks, as records."""

from dataclasses import dataclass
from typing import Literal

from shardwise.measure.kernel_names import KernelFamily
from shardwise.measure.step_split import StepSplit
from shardwise.step.inventory import CollectiveKind
from shardwise.units import Bytes, BytesPerSecond, FlopPerSecond, Seconds

Knob = Literal["compile", "prefetch", "overlap", "straggler", "copies", "idle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """The mean step of one rank."""

    rank: int
    device_name: str
    num_steps: int
    num_kernels: int
    """Kernels of one step."""
    graph_launched_fraction: float
    """Share of the kernels that a CUDA graph issued."""
    split: StepSplit
    wait_s: Seconds | None
    """Time in collectives spent waiting for ranks that came later; ``None`` without traces of other ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveFamily:
    """All collectives of one kind over one axis: a mean step of a mean rank."""

    kind: CollectiveKind | None
    axis: str
    group_size: int | None
    num_calls: float
    payload_bytes: Bytes | None
    """Bytes of all calls together; ``None`` where the trace does not say."""
    work_s: Seconds
    wait_s: Seconds | None
    transfer_s: Seconds | None
    exposed_s: Seconds
    bus_bandwidth_bytes_per_s: BytesPerSecond | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitExposure:
    """One FSDP unit's collectives of one kind in one direction: a mean step of a mean rank."""

    unit: str
    kind: CollectiveKind | None
    is_backward: bool
    num_calls: float
    work_s: Seconds
    exposed_s: Seconds

    @property
    def exposed_fraction(self) -> float:
        """Share of the work that compute does not cover."""
        return self.exposed_s / self.work_s if self.work_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShare:
    """All kernels of one family: a mean step of a mean rank."""

    family: KernelFamily
    num_kernels: float
    duration_s: Seconds
    share_fraction: float
    """Share of the time of all kernels except those of communication."""
    flop_per_s: FlopPerSecond | None
    """Rate over the kernels whose operator recorded its shapes."""
    peak_fraction: float | None = None
    """The rate over the dense bf16 peak of the device, whatever kernels compute in; ``None`` where it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFinding:
    """One thing that costs time, what would help, and by how much at most."""

    knob: Knob
    sentence: str
    advice: str
    gain_s: Seconds
    """Upper bound of the time one step would save."""
    gain_fraction: float
    """The saved time as a share of the step."""
    axis: str = ""
    """Axis of the collectives that cost the time; empty where the trace does not say, or for findings about no axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceProfile:
    """The report of all files that were given."""

    ranks: tuple[RankProfile, ...]
    world_size: int | None
    split: StepSplit
    """A mean step of a mean rank."""
    collectives: tuple[CollectiveFamily, ...]
    units: tuple[UnitExposure, ...]
    kernels: tuple[KernelShare, ...]
    straggler_rank: int | None
    """The rank that the others wait for; ``None`` for a single trace, or when none stands out."""
    findings: tuple[ProfileFinding, ...]
    warnings: tuple[str, ...]
