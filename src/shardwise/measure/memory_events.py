"""Memory of one step, component by component, from the allocations that torch's profiler records.

torch.profiler with ``profile_memory`` writes every allocation and every free of the caching allocator on a GPU and of
the allocator of tensors on a CPU, with address and size. Replayed, they give the peak of every phase and what was alive
at it; what a block is follows from where in the step it was made and when it was freed.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

from shardwise.ledger import MemoryComponent, Phase
from shardwise.measure.phase_marks import BLOCK, FORWARD, LOSS, OPTIMIZER
from shardwise.measure.trace_text import Event, ReadingNotes, trace_events
from shardwise.units import Bytes

MEMORY_EVENT = "[memory]"
DEVICE_TYPES = {"cpu": 0, "cuda": 1}
"""torch ``c10/core/DeviceType.h``."""
GATHERING = (
    "FSDP::all_gather",
    "FSDP::pre_forward",
    "FSDP::pre_backward",
    "FSDP::backward_prefetch",
    "FSDP::forward_pre",
)
REDUCING = ("FSDP::post_backward", "FSDP::root_post_backward")
LIBRARIES = ("gloo:", "nccl:")
MARKS = (*GATHERING, *REDUCING, *LIBRARIES, "shardwise::", "FSDP::post_forward")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """The allocations of one step of one rank."""

    peak_bytes: Bytes
    peak_phase: Phase
    components_bytes: tuple[tuple[MemoryComponent, Bytes], ...]
    """Bytes at the peak by component; they sum to the peak."""
    most_bytes: tuple[tuple[MemoryComponent, Bytes], ...]
    """The most that each component held at any moment of the step; the moments differ."""
    phases_bytes: tuple[tuple[Phase, Bytes], ...]
    """The peak inside every phase."""


@dataclass(slots=True, kw_only=True)
class _Block:
    """One allocation from its request to its release."""

    num_bytes: int
    allocated: int
    """Number of the event that allocated the block."""
    first_marks: tuple[str, ...]
    """Marks that were open on the allocating thread, outermost first."""
    first_phase: Phase
    freed: int | None = None
    last_marks: tuple[str, ...] = ()
    last_phase: Phase = "optimizer"
    is_free_missed: bool = False
    """Whether another block began at the address while this one still counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One allocation or free."""

    moment: float
    thread: object
    address: int
    num_bytes: int
    total_bytes: int


@dataclass(slots=True, kw_only=True)
class _Replay:
    """Blocks by address, and the size of everything over time."""

    level: int
    """Bytes that are allocated now."""
    known: int = 0
    """Bytes of blocks that were allocated within the step."""
    live: dict[int, _Block] = field(default_factory=dict)
    blocks: list[_Block] = field(default_factory=list)
    levels: list[tuple[int, Phase]] = field(default_factory=list)

    def take(self, change: _Change, marks: tuple[str, ...], phase: Phase) -> None:
        """Account for one more event."""
        number = len(self.levels)
        old = self.live.pop(change.address, None)
        if old is not None:
            # A free on a thread without profiler is missed; the next block at the address tells.
            self.level -= old.num_bytes
            old.freed, old.last_marks, old.last_phase = number, marks, phase
            old.is_free_missed = change.num_bytes > 0
        elif change.num_bytes < 0:
            self.level += change.num_bytes
        if change.num_bytes > 0:
            block = _Block(num_bytes=change.num_bytes, allocated=number, first_marks=marks, first_phase=phase)
            self.live[change.address] = block
            self.blocks.append(block)
            self.level += change.num_bytes
        self.levels.append((self.level, phase))

    def end_what_threads_freed(self) -> None:
        """Let blocks of a pass whose free was missed end with the second block after them.

        gloo's threads free what they have sent, and the profiler does not see these threads: the input of a collective
        would count until its address is used again, or to the end of the step.
        """
        allocations = [block.allocated for block in self.blocks]
        too_much = [0] * (len(self.levels) + 1)
        for index, block in enumerate(self.blocks):
            if block.first_phase == "optimizer" or not (block.is_free_missed or block.freed is None):
                continue
            counted_until = len(self.levels) if block.freed is None else block.freed
            ends = min(allocations[index + 2] if index + 2 < len(allocations) else counted_until, counted_until)
            too_much[ends] += block.num_bytes
            too_much[counted_until] -= block.num_bytes
            block.freed, block.last_phase = ends, self.levels[min(ends, len(self.levels) - 1)][1]
        for index, excess in enumerate(accumulate(too_much[:-1])):
            level, phase = self.levels[index]
            self.levels[index] = (level - excess, phase)


def memory_sample(path: Path, *, device: str, held_bytes: Mapping[MemoryComponent, Bytes]) -> MemorySample | None:
    """The sample in a trace with memory events; ``None`` when it has none of the device.

    Args:
        device: ``cpu`` or ``cuda``.
        held_bytes: what was alive before the step, as far as it is known by name.
    """
    changes, ranges = _read(path, DEVICE_TYPES[device])
    if not changes:
        return None
    known = sum(held_bytes.values())
    start = changes[0].total_bytes - changes[0].num_bytes if device == "cuda" else known
    replay = _Replay(level=start)
    open_marks = _OpenMarks(ranges)
    phases = _Phases(ranges)
    for change in changes:
        replay.take(change, open_marks.at(change.thread, change.moment), phases.at(change.moment))
    if device == "cpu":
        replay.end_what_threads_freed()
    return _sample(replay, held_bytes=held_bytes, rest=max(0, start - known))


def _sample(replay: _Replay, *, held_bytes: Mapping[MemoryComponent, Bytes], rest: int) -> MemorySample:
    peak = max(range(len(replay.levels)), key=lambda index: replay.levels[index][0])
    peak_bytes, peak_phase = replay.levels[peak]
    found: dict[MemoryComponent, int] = defaultdict(int, held_bytes)
    for stretch in _stretches(replay):
        if stretch.start <= peak < stretch.end:
            found[stretch.component] += stretch.num_bytes
    found["temporaries"] += rest
    found["temporaries"] += peak_bytes - sum(found.values())  # what was alive before the step and is freed by now
    phases: dict[Phase, int] = {}
    for level, phase in replay.levels:
        phases[phase] = max(phases.get(phase, 0), level)
    return MemorySample(
        peak_bytes=peak_bytes,
        peak_phase=peak_phase,
        components_bytes=tuple((name, num_bytes) for name, num_bytes in found.items() if num_bytes > 0),
        most_bytes=tuple(_most(replay, held_bytes).items()),
        phases_bytes=tuple(phases.items()),
    )


def _most(replay: _Replay, held_bytes: Mapping[MemoryComponent, Bytes]) -> dict[MemoryComponent, int]:
    """The high-water mark of every component; what was held before stays."""
    changes: dict[MemoryComponent, list[tuple[int, int]]] = defaultdict(list)
    for stretch in _stretches(replay):
        changes[stretch.component] += [(stretch.start, stretch.num_bytes), (stretch.end, -stretch.num_bytes)]
    most = {name: num_bytes for name, num_bytes in held_bytes.items() if num_bytes}
    for name, found in changes.items():
        levels = accumulate((change for _, change in sorted(found)), initial=held_bytes.get(name, 0))
        most[name] = max(levels)
    return most


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """The events during which a block counts for one component."""

    component: MemoryComponent
    num_bytes: int
    start: int
    end: int


def _stretches(replay: _Replay) -> Iterator[_Stretch]:
    """Every block from its request to its release; the head's gradient counts for two components in turn.

    Our loss makes the head's gradient in the forward pass. It counts as kept for backward, as in the plan, until
    backward comes to the head, and as a gradient from then on.
    """
    phases = [phase for _, phase in replay.levels]
    first_update = next((index for index, phase in enumerate(phases) if phase == "optimizer"), None)
    backward = [index for index, phase in enumerate(phases) if phase == "backward"]
    for block in replay.blocks:
        component, start = _component(block, first_update), block.allocated
        end = len(phases) if block.freed is None else block.freed
        if component == "gradients" and block.first_phase == "loss":
            known = bisect_left(backward, start)
            handed_over = min(backward[known], end) if known < len(backward) else end
            yield _Stretch(component="activations", num_bytes=block.num_bytes, start=start, end=handed_over)
            start = handed_over
        yield _Stretch(component=component, num_bytes=block.num_bytes, start=start, end=end)


def _component(block: _Block, first_update: int | None) -> MemoryComponent:
    """The component of a block, by where it was allocated and where it was freed."""
    innermost = block.first_marks[-1] if block.first_marks else ""
    outlives_backward = first_update is not None and block.allocated < first_update <= (block.freed or first_update)
    if block.first_phase == "optimizer":
        return "optimizer" if block.freed is None else "temporaries"
    if innermost.startswith(GATHERING):
        return "gathered_parameters"
    if block.first_phase == "backward" or (block.first_phase == "loss" and block.last_phase != "loss"):
        return _made_for_gradients(block, outlives_backward=outlives_backward)
    if block.first_phase == "loss":
        return "logits"
    if innermost.startswith(LIBRARIES):
        return "communication_buffers"
    return "temporaries" if block.last_phase == "forward" and block.freed is not None else "activations"


def _made_for_gradients(block: _Block, *, outlives_backward: bool) -> MemoryComponent:
    """The component of memory made in backward or for the loss: gradients, buffers of collectives, or the rest."""
    if BLOCK in block.first_marks and BLOCK not in block.last_marks:
        return "activations"  # computed again, for as long as backward needs it
    if outlives_backward:
        return "gradients"
    names = [*block.first_marks[-1:], *block.last_marks[-1:]]
    if any(name.startswith((*REDUCING, *LIBRARIES)) for name in names):
        return "communication_buffers"
    return "temporaries" if block.first_phase == "backward" else "activations"


class _OpenMarks:
    """Which marks are open on a thread; asked in order of time."""

    def __init__(self, ranges: Mapping[object, Sequence[tuple[float, float, str]]]) -> None:
        self._coming = {thread: sorted(found, reverse=True) for thread, found in ranges.items()}
        self._open: dict[object, list[tuple[float, float, str]]] = defaultdict(list)

    def at(self, thread: object, moment: float) -> tuple[str, ...]:
        """Marks open on a thread at a moment, outermost first."""
        coming, stack = self._coming.get(thread, []), self._open[thread]
        while coming and coming[-1][0] <= moment:
            stack.append(coming.pop())
        while stack and stack[-1][1] < moment:
            stack.pop()
        return tuple(name for _, end, name in stack if end >= moment)


class _Phases:
    """The phase of every moment: marks of the thread that drives the step, and backward where there are none."""

    def __init__(self, ranges: Mapping[object, Sequence[tuple[float, float, str]]]) -> None:
        found = [item for listed in ranges.values() for item in listed]
        self._forward = _only(found, FORWARD)
        self._loss = _only(found, LOSS)
        self._optimizer = _only(found, OPTIMIZER)

    def at(self, moment: float) -> Phase:
        """The phase of the step at a moment; ``forward`` before the first mark."""
        if any(start <= moment <= end for start, end in self._optimizer):
            return "optimizer"
        if any(start <= moment <= end for start, end in self._loss):
            return "loss"
        is_before = not self._forward or moment < self._forward[0][0]
        if is_before or any(start <= moment <= end for start, end in self._forward):
            return "forward"
        return "optimizer" if self._optimizer and moment > self._optimizer[-1][1] else "backward"


def _only(found: Iterable[tuple[float, float, str]], name: str) -> list[tuple[float, float]]:
    return sorted((start, end) for start, end, mark in found if mark == name)


def _read(path: Path, device_type: int) -> tuple[list[_Change], dict[object, list[tuple[float, float, str]]]]:
    """Allocations of one device by time, and the marks of every thread."""
    changes: list[_Change] = []
    ranges: dict[object, list[tuple[float, float, str]]] = defaultdict(list)
    for event in trace_events(path, ReadingNotes()):
        name = str(event.get("name", ""))
        if name == MEMORY_EVENT:
            change = _change(event, device_type)
            if change is not None:
                changes.append(change)
        elif event.get("ph") == "X" and name.startswith(MARKS):
            start, length = _float(event.get("ts")), _float(event.get("dur"))
            ranges[event.get("tid")].append((start, start + length, name))
    changes.sort(key=lambda change: change.moment)
    return changes, ranges


def _change(event: Event, device_type: int) -> _Change | None:
    facts = event.get("args")
    if not isinstance(facts, dict) or facts.get("Device Type") != device_type:
        return None
    return _Change(
        moment=_float(event.get("ts")),
        thread=event.get("tid"),
        address=int(facts["Addr"]),
        num_bytes=int(facts["Bytes"]),
        total_bytes=int(facts["Total Allocated"]),
    )


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
