"""What a rank's device did with the time of a step: the parts sum to the step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shardwise.measure.intervals import Intervals, clipped, difference, intersection, total_s, union
from shardwise.measure.trace_records import Work
from shardwise.measure.trace_steps import StepWindow
from shardwise.units import Seconds

DEFINITIONS: tuple[tuple[str, str], ...] = (
    ("step", "from the first work launched in a step to the first work launched in the next one"),
    ("compute", "time in which at least one kernel that is no communication runs"),
    ("exposed communication", "time in which a communication kernel runs and no compute kernel does"),
    ("copies", "time in which only copies between host and device, or within it, run"),
    ("host", "idle time before a kernel whose launch the host had not begun when the device became idle"),
    ("idle", "the other idle time: the device waits for an event, another stream or another rank"),
    ("work", "time from a communication kernel's start to its end, waiting for others included"),
    ("transfer", "the work of the rank that entered last: the least over the ranks of the group"),
    ("wait", "work minus transfer: this rank stood in the collective while another had not come"),
    ("exposed", "the part of a collective's work that no compute kernel of its rank covers"),
    ("overlap", "share of the communication time under which compute runs, as Holistic Trace Analysis defines it"),
    ("of peak", "rate over the dense bf16 peak of the device by the catalogue, whatever the kernels compute in"),
    ("bus bandwidth", "payload times the ring's factor over transfer, as nccl-tests defines it"),
)
"""The words of the report, printed under it."""
CLOCK_TICK_S = 1e-9
"""Start times are compared with this slack: the profiler prints nanoseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPart:
    """One part of a step."""

    name: str
    duration_s: Seconds
    share_fraction: float
    """Share of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSplit:
    """One step of one rank, or the mean of several."""

    step_s: Seconds
    compute_s: Seconds
    exposed_communication_s: Seconds
    copies_s: Seconds
    host_s: Seconds
    idle_s: Seconds
    communication_s: Seconds
    """Exposed or not."""
    overlapped_s: Seconds
    """Communication under compute."""

    @property
    def parts(self) -> tuple[SplitPart, ...]:
        """The step in parts, in the order of the definitions; the parts sum to the step."""
        named = {
            "compute": self.compute_s,
            "exposed communication": self.exposed_communication_s,
            "copies": self.copies_s,
            "host": self.host_s,
            "idle": self.idle_s,
        }
        return tuple(
            SplitPart(name=name, duration_s=part_s, share_fraction=part_s / self.step_s if self.step_s else 0.0)
            for name, part_s in named.items()
        )

    @property
    def overlap_fraction(self) -> float | None:
        """Share of communication under compute; ``None`` without communication."""
        return self.overlapped_s / self.communication_s if self.communication_s else None


def split_step(window: StepWindow) -> StepSplit:
    """The parts of one step."""
    compute = _busy(window, _is_compute)
    communication = _busy(window, lambda work: work.family == "communication")
    copies = _busy(window, lambda work: work.kind == "copy")
    exposed = difference(communication, compute)
    alone = difference(difference(copies, compute), communication)
    whole = np.array([[window.start_s, window.end_s]])
    gaps = difference(difference(difference(whole, compute), exposed), alone)
    host_s = _host_s(window, gaps)
    return StepSplit(
        step_s=window.duration_s,
        compute_s=total_s(compute),
        exposed_communication_s=total_s(exposed),
        copies_s=total_s(alone),
        host_s=host_s,
        idle_s=total_s(gaps) - host_s,
        communication_s=total_s(communication),
        overlapped_s=total_s(intersection(communication, compute)),
    )


def mean_split(splits: Sequence[StepSplit]) -> StepSplit:
    """Every part averaged over steps, or over ranks."""
    count = len(splits)
    return StepSplit(
        step_s=sum(split.step_s for split in splits) / count,
        compute_s=sum(split.compute_s for split in splits) / count,
        exposed_communication_s=sum(split.exposed_communication_s for split in splits) / count,
        copies_s=sum(split.copies_s for split in splits) / count,
        host_s=sum(split.host_s for split in splits) / count,
        idle_s=sum(split.idle_s for split in splits) / count,
        communication_s=sum(split.communication_s for split in splits) / count,
        overlapped_s=sum(split.overlapped_s for split in splits) / count,
    )


def compute_intervals(works: Sequence[Work]) -> Intervals:
    """When at least one kernel that is no communication runs."""
    return union((work.start_s, work.end_s) for work in works if _is_compute(work))


def _is_compute(work: Work) -> bool:
    return work.kind != "copy" and work.family != "communication"


def _busy(window: StepWindow, is_wanted: Callable[[Work], bool]) -> Intervals:
    busy = union((work.start_s, work.end_s) for work in window.works if is_wanted(work))
    return clipped(busy, start_s=window.start_s, end_s=window.end_s)


def _host_s(window: StepWindow, gaps: Intervals) -> Seconds:
    """The part of the gaps that lies before the launch of the work that ends them."""
    starts = np.array([work.start_s for work in window.works])
    launches = np.array([np.nan if work.launch_s is None else work.launch_s for work in window.works])
    last = np.nan if window.next_launch_s is None else window.next_launch_s
    order = np.argsort(starts, kind="stable")
    index = np.searchsorted(starts[order], gaps[:, 1] - CLOCK_TICK_S)
    ending = np.append(launches[order], last)[index]
    waited = np.clip(ending, gaps[:, 0], gaps[:, 1]) - gaps[:, 0]
    return float(np.nansum(waited))
