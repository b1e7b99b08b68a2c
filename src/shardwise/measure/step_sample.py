"""One profiled step of our native engine in the ledger's components of time."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.ledger import TIME_COMPONENTS, TimeComponent
from shardwise.measure.gloo_kinds import with_asked_kinds
from shardwise.measure.intervals import Intervals, difference, holds, intersection, total_s, union
from shardwise.measure.phase_marks import BLOCK, FORWARD, OPTIMIZER, marked
from shardwise.measure.rank_trace import read_rank_trace
from shardwise.measure.step_split import StepSplit, compute_intervals, split_step
from shardwise.measure.trace_collectives import CollectiveCall, collective_calls, exposed_together_s
from shardwise.measure.trace_records import RankTrace, Work
from shardwise.measure.trace_steps import StepWindow, step_windows
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySample:
    """All collectives of one kind in the step."""

    kind: str
    num_calls: float
    work_s: Seconds
    """Time from start to end of the collectives, waiting for other ranks included."""
    exposed_s: Seconds
    """Time under no computation; when two kinds run at once, it counts for both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSample:
    """Where one step of one rank, or the mean of all ranks, went."""

    step: int
    step_s: Seconds
    compute_s: Seconds
    exposed_communication_s: Seconds
    copies_s: Seconds
    host_s: Seconds
    idle_s: Seconds
    components_s: tuple[tuple[TimeComponent, Seconds], ...]
    """Time of the ledger's components, which sum to the step."""
    families: tuple[FamilySample, ...]
    """Collectives by kind, the largest exposed time first."""

    @property
    def exposed_fraction(self) -> float:
        """Share of the step in communication that nothing covers."""
        return self.exposed_communication_s / self.step_s if self.step_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledRun:
    """What of a plan decides how the time of a step is named."""

    has_pipeline: bool = False
    """Whether exposed messages between stages count as the pipeline's bubble."""
    has_offload: bool = False
    """Whether exposed copies count as the cost of offload; without offload they belong to something else."""


def sample_of_trace(path: Path, run: SampledRun, *, step: int, rank: int) -> StepSample:
    """The sample in the trace of one step that our runtime marked."""
    return sample_of(with_asked_kinds(read_rank_trace(path, fallback_rank=rank)), run, step=step)


def sample_of(trace: RankTrace, run: SampledRun, *, step: int) -> StepSample:
    """The sample of a trace that was read; its last step where there are several."""
    window = step_windows(trace)[-1]
    split = split_step(window)
    return StepSample(
        step=step,
        step_s=split.step_s,
        compute_s=split.compute_s,
        exposed_communication_s=split.exposed_communication_s,
        copies_s=split.copies_s,
        host_s=split.host_s,
        idle_s=split.idle_s,
        components_s=_components(trace, window, split, run),
        families=_families(collective_calls(trace, window)),
    )


def mean_sample(samples: Sequence[StepSample]) -> StepSample:
    """The mean of all ranks' samples of one step."""
    count = len(samples)
    components: dict[TimeComponent, float] = defaultdict(float)
    families: dict[str, list[FamilySample]] = defaultdict(list)
    for sample in samples:
        for name, part_s in sample.components_s:
            components[name] += part_s / count
        for family in sample.families:
            families[family.kind].append(family)
    return StepSample(
        step=samples[0].step,
        step_s=sum(sample.step_s for sample in samples) / count,
        compute_s=sum(sample.compute_s for sample in samples) / count,
        exposed_communication_s=sum(sample.exposed_communication_s for sample in samples) / count,
        copies_s=sum(sample.copies_s for sample in samples) / count,
        host_s=sum(sample.host_s for sample in samples) / count,
        idle_s=sum(sample.idle_s for sample in samples) / count,
        components_s=tuple((name, components[name]) for name in TIME_COMPONENTS),
        families=_by_exposure(_joined(kind, found, count) for kind, found in families.items()),
    )


def _joined(kind: str, found: Sequence[FamilySample], count: int) -> FamilySample:
    return FamilySample(
        kind=kind,
        num_calls=sum(family.num_calls for family in found) / count,
        work_s=sum(family.work_s for family in found) / count,
        exposed_s=sum(family.exposed_s for family in found) / count,
    )


def _families(calls: Sequence[CollectiveCall]) -> tuple[FamilySample, ...]:
    kinds: dict[str, list[CollectiveCall]] = defaultdict(list)
    for call in calls:
        kinds[call.kind or "unknown"].append(call)
    return _by_exposure(
        FamilySample(
            kind=kind,
            num_calls=len(found),
            work_s=sum(call.work_s for call in found),
            exposed_s=exposed_together_s(found),
        )
        for kind, found in kinds.items()
    )


def _by_exposure(families: Iterator[FamilySample]) -> tuple[FamilySample, ...]:
    return tuple(sorted(families, key=lambda family: (-family.exposed_s, family.kind)))


def _components(
    trace: RankTrace, window: StepWindow, split: StepSplit, run: SampledRun
) -> tuple[tuple[TimeComponent, Seconds], ...]:
    """Computation belongs to the phase in which the host launched it; what no mark covers is backward.

    Updates that are launched inside forward are the optimizer's, as far as no computation of the forward covers them.
    """
    works = [work for work in window.works if work.kind != "copy" and work.family != "communication"]
    updating = marked(trace, OPTIMIZER)
    forward = difference(marked(trace, FORWARD), updating)
    phases: dict[TimeComponent, Intervals] = {
        "forward": forward,
        "recompute": difference(marked(trace, BLOCK), forward),
        "optimizer": updating,
    }
    seconds: dict[TimeComponent, float] = dict.fromkeys(TIME_COMPONENTS, 0.0)
    left = _busy(works)
    for name, launched in phases.items():
        busy = _busy([work for work in works if holds(launched, work.issued_s)])
        seconds[name] = total_s(intersection(left, busy))
        left = difference(left, busy)
    seconds["backward"] = total_s(left)
    waits_s = _stage_waits_s(window) if run.has_pipeline else 0.0
    seconds["pipeline_bubble"] = min(waits_s, split.exposed_communication_s)
    seconds["exposed_communication"] = split.exposed_communication_s - seconds["pipeline_bubble"]
    seconds["offload"] = split.copies_s if run.has_offload else 0.0
    seconds["other"] = split.host_s + split.idle_s + split.copies_s - seconds["offload"]
    return tuple((name, seconds[name]) for name in TIME_COMPONENTS)


def _busy(works: Iterable[Work]) -> Intervals:
    return union((work.start_s, work.end_s) for work in works)


def _stage_waits_s(window: StepWindow) -> Seconds:
    """Exposed messages between pipeline stages: the time a stage waits for its neighbours."""
    messages = (
        work for work in window.works if work.communication is not None and work.communication.kind == "send_recv"
    )
    return total_s(difference(_busy(messages), compute_intervals(window.works)))
