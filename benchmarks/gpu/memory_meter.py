"""Reads the caching allocator and the device, phase by phase, without stopping the GPU inside a step."""

import gc
import time
from dataclasses import dataclass, field

import torch

PhaseRecord = dict[str, float]


def device_used_bytes(device: torch.device) -> int:
    """What is taken on the whole device, as the driver counts it."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def allocated_bytes(device: torch.device) -> int:
    """What the allocator has handed out now."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def reserved_bytes(device: torch.device) -> int:
    """What the allocator holds now."""
    return torch.cuda.memory_reserved(device) if device.type == "cuda" else 0


def outside_allocator_bytes(device: torch.device) -> int:
    """Context, loaded kernels, communicators: device memory that the allocator does not hold."""
    return device_used_bytes(device) - reserved_bytes(device)


def clean(device: torch.device) -> None:
    """Give everything back, so that the next run starts with an empty cache."""
    gc.collect()
    torch.compiler.reset()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.reset_accumulated_memory_stats(device)


def drop_cache(device: torch.device) -> None:
    """Return what building the model left in the cache: a run that starts from a checkpoint never held it."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


@dataclass(slots=True)
class StepRecorder:
    """Peaks of one optimizer step between marks; a phase that occurs several times keeps its largest values."""

    device: torch.device
    phases: dict[str, PhaseRecord] = field(default_factory=dict)
    _events: list[tuple[str, torch.cuda.Event]] = field(default_factory=list)
    _started_s: float = 0.0
    wall_s: float = 0.0

    def start(self) -> None:
        """Wait for the device, then begin the step with peaks equal to what is in use."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            self._record_event("start")
        self._started_s = time.perf_counter()

    def mark(self, phase: str) -> None:
        """Close ``phase``: keep its peaks and what is allocated at its end."""
        if self.device.type != "cuda":
            self.phases[phase] = {}
            return
        stats = torch.cuda.memory_stats(self.device)
        reading = {
            "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
            "peak_requested_bytes": stats["requested_bytes.all.peak"],
            "peak_active_bytes": stats["active_bytes.all.peak"],
            "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
            "end_allocated_bytes": stats["allocated_bytes.all.current"],
        }
        earlier = self.phases.get(phase, {})
        self.phases[phase] = {key: max(value, earlier.get(key, 0)) for key, value in reading.items()}
        self._record_event(phase)
        torch.cuda.reset_peak_memory_stats(self.device)

    def finish(self) -> None:
        """Wait for the device and add the time of every phase."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.wall_s = time.perf_counter() - self._started_s
        for (_, before), (phase, after) in zip(self._events, self._events[1:], strict=False):
            record = self.phases[phase]
            record["time_s"] = record.get("time_s", 0.0) + before.elapsed_time(after) / 1e3

    def _record_event(self, phase: str) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._events.append((phase, event))

    def as_record(self) -> dict[str, object]:
        """One step as plain data."""
        return {"wall_s": round(self.wall_s, 6), "phases": self.phases}


def largest(step: dict[str, object], key: str) -> float:
    """The largest value of ``key`` over the phases of one step."""
    phases = step["phases"]
    assert isinstance(phases, dict)
    return max((phase.get(key, 0) for phase in phases.values()), default=0)
