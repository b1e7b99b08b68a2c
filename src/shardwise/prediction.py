"""Records of a prediction. ``render/json_records.py`` writes them as ``shardwise.prediction/1``."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from shardwise.attention_kernels import AttentionKernel
from shardwise.ledger import MemoryComponent, Phase, TimeComponent
from shardwise.units import Bytes, Dollars, Flop, FlopPerSecond, Seconds

__all__ = [
    "CommunicationEntry",
    "CostPrediction",
    "ExposedCommunication",
    "ExposedShare",
    "Fit",
    "MemoryEntry",
    "MemoryPrediction",
    "PhaseMemory",
    "Prediction",
    "RunningCost",
    "StageMemory",
    "Throughput",
    "TimeEntry",
    "TimePrediction",
]


Fit = Literal["fits", "at the edge", "does not fit"]
"""How every answer says whether a plan fits."""
VERDICTS: tuple[Fit, ...] = get_args(Fit)
"""Every verdict, from the safest to the worst."""
FIT_VERBS: Mapping[Fit, str] = {"fits": "fits", "at the edge": "is at the edge", "does not fit": "does not fit"}
"""Each verdict as the verb of a sentence."""
ROUNDING = 1e-9
"""Smaller shares of a sum are what adding up leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEntry:
    """One component's bytes at the moment they are reported for."""

    component: MemoryComponent
    num_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """The high-water mark inside one phase of the step."""

    phase: Phase
    allocated_bytes: Bytes
    reserved_bytes: Bytes
    """Bytes the allocator holds: after the first step it keeps its high-water mark, so only loading has its own."""
    device_used_bytes: Bytes
    moment: str
    """The moment of the mark, such as ``backward of layers.31``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Memory of the worst rank of one pipeline stage."""

    stage: int
    layers: int
    in_flight_micro_batches: float
    peak_phase: Phase
    peak_moment: str
    peak_allocated_bytes: Bytes
    peak_reserved_bytes: Bytes
    device_used_bytes: Bytes
    components: tuple[MemoryEntry, ...]
    """All nine components at the peak of what the device holds; they sum to ``device_used_bytes``."""
    phases: tuple[PhaseMemory, ...]
    largest_tensors: tuple[tuple[str, Bytes], ...]
    """The named tensors alive at the peak, largest first."""
    host_bytes: Bytes
    """Pinned or pageable host memory of one rank."""
    nvme_bytes: Bytes

    @property
    def needed_bytes(self) -> Bytes:
        """Bytes the rank cannot do without: live tensors and what lies outside the allocator, no cached blocks."""
        return self.device_used_bytes - self.peak_reserved_bytes + self.peak_allocated_bytes

    def component_bytes(self, component: MemoryComponent) -> Bytes:
        """Bytes of one component at the peak."""
        return next(entry.num_bytes for entry in self.components if entry.component == component)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrediction:
    """Memory of every stage; the worst one decides."""

    capacity_bytes: Bytes
    stages: tuple[StageMemory, ...]
    host_capacity_bytes: Bytes
    """Host memory per node; 0 when unknown."""
    host_bytes_per_node: Bytes
    nvme_capacity_bytes: Bytes
    nvme_bytes_per_node: Bytes
    low_fraction: float
    """Lower edge of the band on the peak, as a fraction of it."""
    high_fraction: float

    @property
    def worst(self) -> StageMemory:
        """The stage whose ranks cannot do without the most device memory; caches break a tie."""
        return max(self.stages, key=lambda stage: (stage.needed_bytes, stage.device_used_bytes))

    @property
    def needed_bytes(self) -> Bytes:
        """Bytes the neediest device cannot do without; cached blocks are given back before an allocation fails."""
        return max(stage.needed_bytes for stage in self.stages)

    @property
    def spare_bytes(self) -> Bytes:
        """Bytes that the neediest device has beyond its need; 0 when it does not fit."""
        return max(0, self.capacity_bytes - self.needed_bytes)

    @property
    def shows_cached_blocks(self) -> bool:
        """Whether nvidia-smi shows over a per cent more than is needed: blocks that the allocator keeps."""
        return self.worst.device_used_bytes > 1.01 * self.needed_bytes

    @property
    def missing_bytes(self) -> Bytes:
        """Bytes that the neediest device lacks; 0 when it fits."""
        return max(0, self.needed_bytes - self.capacity_bytes)

    @property
    def host_missing_bytes(self) -> Bytes:
        """Bytes of host memory that each node lacks; 0 when it has enough or its size is unknown."""
        return max(0, self.host_bytes_per_node - self.host_capacity_bytes) if self.host_capacity_bytes else 0

    @property
    def nvme_missing_bytes(self) -> Bytes:
        """Bytes of drives that each node lacks; 0 when they are enough or their size is unknown."""
        return max(0, self.nvme_bytes_per_node - self.nvme_capacity_bytes) if self.nvme_capacity_bytes else 0

    @property
    def is_borderline(self) -> bool:
        """Whether the band around what is needed reaches beyond the device or the host, or begins inside the device."""
        return self.is_device_borderline or self.is_host_borderline

    @property
    def is_device_borderline(self) -> bool:
        """Whether the device's capacity lies inside the band around what is needed."""
        low, high = self.needed_bytes * self.low_fraction, self.needed_bytes * self.high_fraction
        return low <= self.capacity_bytes < high

    @property
    def is_host_borderline(self) -> bool:
        """Whether a host holds what is offloaded to it with less to spare than the band of memory allows for.

        What the system and the processes themselves take there is not counted.
        """
        needed = self.host_bytes_per_node
        return needed <= self.host_capacity_bytes < needed * self.high_fraction

    @property
    def fit(self) -> Fit:
        """The verdict by the memory band: what fits as predicted is at the edge where its band does not."""
        if not (self.fits_device and self.fits_host):
            return "does not fit"
        return "at the edge" if self.is_borderline else "fits"

    @property
    def tight_place(self) -> str:
        """The memory that a borderline plan may not fit into: the device's or the host's."""
        return "the device" if self.is_device_borderline else "the host's memory"

    @property
    def fits_device(self) -> bool:
        """Whether the worst rank stays within the device."""
        return self.worst.device_used_bytes <= self.capacity_bytes

    @property
    def fits_host(self) -> bool:
        """Whether the host and its drives hold what is offloaded to them; true when their size is unknown."""
        return not self.host_missing_bytes and not self.nvme_missing_bytes

    @property
    def headroom_bytes(self) -> Bytes:
        """Bytes left on the worst device; negative when it does not fit."""
        return self.capacity_bytes - self.worst.device_used_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CommunicationEntry:
    """One kind of collective over one axis, summed over the step."""

    name: str
    kind: str
    axis: str
    group_size: int
    num_bytes: Bytes
    """Payload of one call on one rank."""
    count: int
    total_s: Seconds
    exposed_s: Seconds
    algorithm: str = ""
    """Algorithm that NCCL takes for one call: ring, tree, nvls, nvls_tree, pat or p2p."""
    protocol: str = ""
    """NCCL's protocol: LL, LL128 or Simple."""
    bottleneck: str = ""
    """What limits one call: latency, the scale-up link, PCIe or the network."""
    basis: str = ""
    """Origin of the time: measured on such a group, scaled from other groups on the same links, or modelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedShare:
    """Seconds the step would lose if one axis or unit communicated in no time and all others as they do."""

    name: str
    exposed_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedCommunication:
    """The makespan minus the makespan with free communication; the shares need not sum to it."""

    total_s: Seconds
    axes: tuple[ExposedShare, ...]
    units: tuple[ExposedShare, ...]

    @property
    def shared_by_axes_s(self) -> Seconds:
        """Seconds that go only when several axes are free; below zero where they expose the same wait."""
        return _rest_s(self.total_s, self.axes)

    @property
    def shared_by_units_s(self) -> Seconds:
        """Seconds that go only when several units are free; below zero where they expose the same wait."""
        return _rest_s(self.total_s, self.units)


def _rest_s(total_s: Seconds, shares: tuple[ExposedShare, ...]) -> Seconds:
    rest_s = total_s - sum(share.exposed_s for share in shares)
    return rest_s if abs(rest_s) > ROUNDING * total_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeEntry:
    """Seconds of one component of the step."""

    component: TimeComponent
    duration_s: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TimePrediction:
    """Step time with its band and its parts; the parts sum to it."""

    step_s: Seconds
    step_low_s: Seconds
    step_high_s: Seconds
    components: tuple[TimeEntry, ...]
    communication: tuple[CommunicationEntry, ...]
    attention_kernel: AttentionKernel | None = None
    """What computes attention, as the recipe says or as the engine chooses; ``None`` where nothing attends."""

    def share_of(self, names: Container[TimeComponent]) -> float:
        """Share of the step that some of its components take."""
        return sum(entry.duration_s for entry in self.components if entry.component in names) / self.step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Rates that follow from the step time."""

    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu_fraction: float | None
    """``None`` where no source states the peak of the device."""
    hfu_fraction: float | None
    mfu_convention: str
    model_flop_per_step: Flop
    attention_fraction: float
    """Share of these FLOP that attention's scores and values take: the part that grows with the sequence."""
    peak_flop_per_s: FlopPerSecond


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSensitivity:
    """How far one assumption moves the cost of a run, the others held."""

    assumption: str
    """``MFU``, ``step time``, ``goodput`` or ``price``."""
    basis: str
    """The two ends of the assumption and who reports them."""
    low_gpu_hours: float
    high_gpu_hours: float
    low_usd: Dollars | None
    """``None`` when no price is known."""
    high_usd: Dollars | None
    swing_ratio: float
    """Dearest over cheapest: dollars where the price is what moves, GPU-hours otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPrediction:
    """The whole run: only when the recipe names its tokens."""

    tokens: float
    gpu_hours: float
    low_gpu_hours: float
    high_gpu_hours: float
    """The band of speed and goodput, nine in ten; days, dollars and energy have the same one."""
    days: float
    usd: Dollars | None
    """``None`` when no price is known."""
    usd_per_gpu_hour: Dollars | None
    price_source: str
    goodput_fraction: float
    goodput_low_fraction: float
    goodput_high_fraction: float
    energy_mwh: float | None
    """``None`` when the power of the GPU is unknown."""
    assumptions: tuple[str, ...]
    sensitivities: tuple[CostSensitivity, ...] = ()
    """One per assumption that was not given, the one that moves the cost most first."""

    @property
    def best_days(self) -> float:
        """Days of the run were every second of it spent on steps: nothing fails, restarts or is evaluated."""
        return self.days * self.goodput_fraction

    @property
    def best_usd(self) -> Dollars | None:
        """Dollars of those days; ``None`` when no price is known."""
        return None if self.usd is None else self.usd * self.goodput_fraction

    @property
    def rate_sensitivity(self) -> CostSensitivity | None:
        """How far the cost moves with the speed, by the band of the step or published MFUs; ``None`` where one was
        given."""
        return next((row for row in self.sensitivities if row.assumption in ("step time", "MFU")), None)

    def ends(self, amount: float) -> tuple[float, float]:
        """Both ends of the band of an amount that follows from GPU-hours: days, dollars, energy."""
        return amount * self.low_gpu_hours / self.gpu_hours, amount * self.high_gpu_hours / self.gpu_hours

    @property
    def low_days(self) -> float:
        """Days at the low end of the band."""
        return self.ends(self.days)[0]

    @property
    def high_days(self) -> float:
        """Days at the high end of the band."""
        return self.ends(self.days)[1]

    @property
    def low_usd(self) -> Dollars | None:
        """Dollars at the low end of the band, at the same price; ``None`` when no price is known."""
        return None if self.usd is None else self.ends(self.usd)[0]

    @property
    def high_usd(self) -> Dollars | None:
        """Dollars at the high end of the band, at the same price; ``None`` when no price is known."""
        return None if self.usd is None else self.ends(self.usd)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCost:
    """Dollars of the hardware by its price: for an hour, and for tokens at the predicted step, without failures."""

    usd_per_gpu_hour: Dollars
    usd_per_hour: Dollars
    """All GPUs of the plan together."""
    usd_per_million_tokens: Dollars
    price_source: str = ""
    """Whose price it is: a median over clouds, a provider's, or the user's own."""

    @property
    def usd_per_billion_tokens(self) -> Dollars:
        """Dollars of a thousand times as many tokens."""
        return 1000 * self.usd_per_million_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a plan will need and how fast it will run."""

    memory: MemoryPrediction
    time: TimePrediction
    throughput: Throughput
    cost: CostPrediction | None
    running_cost: RunningCost | None = None
    """``None`` when no price is known."""
    assumptions: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the worst device and the hosts hold it."""
        return self.memory.fits_device and self.memory.fits_host

    @property
    def fit(self) -> Fit:
        """The verdict by the memory band, as every answer says it."""
        return self.memory.fit
