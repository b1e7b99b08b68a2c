"""The collectives of one rank's step: what each moved, how long it took, what of it was exposed, whose it was."""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from shardwise.measure.intervals import Intervals, difference, total_s, union
from shardwise.measure.kernel_names import collective_kind
from shardwise.measure.step_split import compute_intervals
from shardwise.measure.trace_records import CommunicationFacts, Mark, RankTrace, Work
from shardwise.measure.trace_steps import StepWindow
from shardwise.step.inventory import CollectiveKind
from shardwise.units import Bytes, Seconds

UNIT = re.compile(r"^FSDP::(?P<what>[a-z_ ]+?)(?: for)? ?\(?(?P<unit>[\w.\[\]]*)\)?$")
AXES = ("dp_replicate", "dp_shard_cp", "dp_shard", "tp", "cp", "pp", "ep")
LIBRARY = re.compile(r"^(nccl|gloo|rccl):")
"""Ranges that name a collective even where its kernel is NCCL's point-to-point one, as all-to-all's is."""
BACKWARD = re.compile(r"[Bb]ackward")
AXIS_WORDS: dict[str, str] = {
    "fsdp": "dp_shard",
    "ddp": "dp_replicate",
    "tensor": "tp",
    "pipeline": "pp",
    "expert": "ep",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCall:
    """One collective of one rank."""

    kind: CollectiveKind | None
    """``None`` when neither the arguments, nor the name, nor a range of the host says."""
    start_s: Seconds
    end_s: Seconds
    exposed: Intervals
    """Time of the kernel that no compute kernel of its rank covers."""
    payload_bytes: Bytes | None
    group_size: int | None
    group_key: str
    """The group's ranks, or else its name: what the ranks of one collective have in common."""
    axis: str
    """``dp_shard``, ``tp``, ... where the group's description says; else the group's name."""
    unit: str
    """The FSDP unit, such as ``layers.0``; empty when no range of the host names one."""
    is_backward: bool

    @property
    def work_s(self) -> Seconds:
        """Time from the kernel's start to its end, waiting for other ranks included."""
        return self.end_s - self.start_s


def exposed_together_s(calls: Iterable[CollectiveCall]) -> Seconds:
    """Time in which at least one of a rank's collectives is exposed: those that run at the same time count once."""
    return total_s(union(tuple(pair) for call in calls for pair in call.exposed.tolist()))


def collective_calls(trace: RankTrace, window: StepWindow) -> tuple[CollectiveCall, ...]:
    """The collectives of one step, by start."""
    compute = compute_intervals(window.works)
    places = _Places(trace.marks)
    works = [work for work in window.works if work.family == "communication"]
    return tuple(_call(work, compute=compute, places=places) for work in works)


class _Places:
    """Which marks of a thread were open at a moment, innermost first."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self._marks: dict[int, list[Mark]] = {}
        for mark in marks:
            self._marks.setdefault(mark.thread, []).append(mark)
        self._starts = {thread: [mark.start_s for mark in found] for thread, found in self._marks.items()}
        self._longest = {
            thread: max(mark.end_s - mark.start_s for mark in found) for thread, found in self._marks.items()
        }

    def open_at(self, *, thread: int | None, moment_s: Seconds | None) -> Iterator[Mark]:
        """Marks around a moment on its thread."""
        if thread is None or moment_s is None or thread not in self._marks:
            return
        marks, starts = self._marks[thread], self._starts[thread]
        index = bisect_right(starts, moment_s) - 1
        while index >= 0 and moment_s - starts[index] <= self._longest[thread]:
            if marks[index].end_s >= moment_s:
                yield marks[index]
            index -= 1


def _call(work: Work, *, compute: Intervals, places: _Places) -> CollectiveCall:
    facts = work.communication
    around = tuple(places.open_at(thread=work.launch_thread, moment_s=work.launch_s))
    stated = facts.kind if facts else None
    of_range = next(
        (kind for mark in around if LIBRARY.match(mark.name) and (kind := collective_kind(mark.name))), None
    )
    return CollectiveCall(
        kind=stated or of_range or collective_kind(work.name),
        start_s=work.start_s,
        end_s=work.end_s,
        exposed=difference(union([(work.start_s, work.end_s)]), _near(compute, work)),
        payload_bytes=facts.payload_bytes if facts else None,
        group_size=facts.group_size if facts else None,
        group_key=_group_key(facts),
        axis=_axis(facts),
        unit=_unit(around),
        is_backward=any(BACKWARD.search(mark.name) or "post_backward" in mark.name for mark in around),
    )


def _near(intervals: Intervals, work: Work) -> Intervals:
    """The intervals that may touch the work, so that each call looks at few of them."""
    first = max(0, int(intervals[:, 1].searchsorted(work.start_s, side="right")))
    last = int(intervals[:, 0].searchsorted(work.end_s, side="left"))
    return intervals[first:last]


def _unit(around: Sequence[Mark]) -> str:
    """The unit that the innermost FSDP range names."""
    found = (UNIT.match(mark.name) for mark in around)
    return next((match["unit"] for match in found if match and match["unit"]), "")


def _group_key(facts: CommunicationFacts | None) -> str:
    if facts is None:
        return ""
    if facts.group_ranks:
        return ",".join(map(str, facts.group_ranks))
    return facts.group_name


def _axis(facts: CommunicationFacts | None) -> str:
    """The axis that a group's description names: ``mesh_dp_shard`` is ``dp_shard``."""
    if facts is None:
        return ""
    words = facts.group_description.lower()
    known = next((axis for axis in AXES if re.search(rf"(^|[^a-z]){axis}($|[^a-z])", words)), None)
    return known or next((axis for word, axis in AXIS_WORDS.items() if word in words), facts.group_name)
