"""Where the memory of a recorded run goes: its peak and each phase's, by component and by line of code."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.ledger import PHASES, Phase
from shardwise.measure.memory_origin import BEFORE_RECORDING, BlockComponent, component_of, origin_of
from shardwise.measure.memory_snapshot import Allocation, DeviceHistory, RefusedRequest, read_memory_snapshot
from shardwise.units import Bytes

NUM_SAMPLES = 400
"""Moments of the picture: about one per pixel column pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMoment:
    """What is held at one event."""

    event_index: int
    phase: Phase
    num_bytes: Bytes
    components: tuple[tuple[BlockComponent, Bytes], ...]
    """Bytes by component, largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeShare:
    """Blocks that one place in the code asked for, of those held at the peak."""

    label: str
    component: BlockComponent
    num_blocks: int
    num_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryProfile:
    """One device's recording."""

    path: Path
    device_index: int
    num_events: int
    peak: MemoryMoment
    phase_peaks: tuple[MemoryMoment, ...]
    """The highest moment of every phase that occurs, in the order of a step."""
    peak_reserved_bytes: Bytes
    code: tuple[CodeShare, ...]
    """Places in the code that hold memory at the peak, largest first."""
    samples: tuple[MemoryMoment, ...]
    """Moments for a picture, each the highest of its stretch of the recording."""
    refused: tuple[RefusedRequest, ...]

    @property
    def slack_bytes(self) -> Bytes:
        """Reserved and not allocated at the two peaks: rounding, and holes between blocks."""
        return max(0, self.peak_reserved_bytes - self.peak.num_bytes)

    def peak_fraction(self, component: BlockComponent) -> float:
        """A component's share of what is held at the peak."""
        return dict(self.peak.components).get(component, 0) / self.peak.num_bytes if self.peak.num_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """An allocation that is understood."""

    allocation: Allocation
    component: BlockComponent
    label: str


def profile_memory(path: Path) -> tuple[MemoryProfile, ...]:
    """The report of every device in a snapshot.

    Raises:
        TraceError: the file is no snapshot, or nothing was recorded in it.
    """
    return tuple(memory_profile_of(history, path=path) for history in read_memory_snapshot(path))


def memory_profile_of(history: DeviceHistory, *, path: Path) -> MemoryProfile:
    """The report of one device's recording."""
    phases = _phases(history)
    blocks = tuple(_understood(allocation, phases) for allocation in history.allocations)
    totals = tuple(_totals(blocks, num_events=history.num_events))
    highest: dict[Phase, int] = {}
    for event, total in enumerate(totals):
        phase = phases[event]
        if phase not in highest or total > totals[highest[phase]]:
            highest[phase] = event
    peak_event = max(highest.values(), key=lambda event: totals[event])
    sampled = tuple(_sampled_events(totals))
    moments = _moments(blocks, {peak_event, *highest.values(), *sampled}, phases=phases)
    return MemoryProfile(
        path=path,
        device_index=history.device_index,
        num_events=history.num_events,
        peak=moments[peak_event],
        phase_peaks=tuple(moments[highest[phase]] for phase in PHASES if phase in highest),
        peak_reserved_bytes=history.peak_reserved_bytes,
        code=tuple(_code_shares(blocks, event=peak_event)),
        samples=tuple(moments[event] for event in sampled),
        refused=history.refused,
    )


def _phases(history: DeviceHistory) -> tuple[Phase, ...]:
    """The phase at every event: that of the last request whose stack says one."""
    said = {allocation.begin: origin_of(allocation.frames).phase for allocation in history.allocations}
    phases: list[Phase] = []
    now: Phase = "load"
    for event in range(history.num_events):
        phase = said.get(event)
        if phase is not None and not (now == "load" and phase == "backward"):
            now = phase
        phases.append(now)
    return tuple(phases)


def _understood(allocation: Allocation, phases: Sequence[Phase]) -> _Block:
    origin = origin_of(allocation.frames)
    if allocation.begin is None:
        return _Block(allocation=allocation, component=BEFORE_RECORDING, label="held before the recording began")
    released = None if allocation.end is None else phases[allocation.end]
    component = component_of(origin, requested=phases[allocation.begin], released=released)
    return _Block(allocation=allocation, component=component, label=origin.label)


def _totals(blocks: Sequence[_Block], *, num_events: int) -> Iterator[Bytes]:
    """Bytes held after every event."""
    changes = [0] * (num_events + 1)
    for block in blocks:
        changes[block.allocation.begin or 0] += block.allocation.num_bytes
        if block.allocation.end is not None:
            changes[block.allocation.end] -= block.allocation.num_bytes
    total = 0
    for change in changes[:num_events]:
        total += change
        yield total


def _sampled_events(totals: Sequence[Bytes]) -> Iterator[int]:
    stride = max(1, len(totals) // NUM_SAMPLES)
    for start in range(0, len(totals), stride):
        yield max(range(start, min(start + stride, len(totals))), key=lambda event: totals[event])


def _moments(blocks: Sequence[_Block], events: set[int], *, phases: Sequence[Phase]) -> dict[int, MemoryMoment]:
    """What is held at each of the events, in one pass over the blocks' begins and ends."""
    changes: dict[int, list[tuple[BlockComponent, Bytes]]] = defaultdict(list)
    for block in blocks:
        changes[block.allocation.begin or 0].append((block.component, block.allocation.num_bytes))
        if block.allocation.end is not None:
            changes[block.allocation.end].append((block.component, -block.allocation.num_bytes))
    held: Counter[BlockComponent] = Counter()
    moments: dict[int, MemoryMoment] = {}
    for event in sorted({*changes, *events}):
        for component, num_bytes in changes.get(event, ()):
            held[component] += num_bytes
        if event in events:
            moments[event] = MemoryMoment(
                event_index=event,
                phase=phases[event],
                num_bytes=sum(held.values()),
                components=tuple((name, size) for name, size in held.most_common() if size > 0),
            )
    return moments


def _code_shares(blocks: Sequence[_Block], *, event: int) -> Iterator[CodeShare]:
    sizes: Counter[tuple[str, BlockComponent]] = Counter()
    counts: Counter[tuple[str, BlockComponent]] = Counter()
    for block in blocks:
        if _is_held(block.allocation, event):
            sizes[block.label, block.component] += block.allocation.num_bytes
            counts[block.label, block.component] += 1
    for (label, component), num_bytes in sizes.most_common():
        key = (label, component)
        yield CodeShare(label=label, component=component, num_blocks=counts[key], num_bytes=num_bytes)


def _is_held(allocation: Allocation, event: int) -> bool:
    return (allocation.begin or 0) <= event and (allocation.end is None or allocation.end > event)
