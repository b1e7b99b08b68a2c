"""The report of one or many ranks' traces: where the step went, collective by collective and unit by unit."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from shardwise.catalog import load_gpu
from shardwise.catalog.hardware.names import driver_gpu_id
from shardwise.errors import ShardwiseError
from shardwise.formulas.collective_volume import all_gather_factor, all_reduce_factor
from shardwise.measure.predicted_timeline import read_traces
from shardwise.measure.profile_findings import find_costs
from shardwise.measure.profile_records import CollectiveFamily, KernelShare, RankProfile, TraceProfile, UnitExposure
from shardwise.measure.step_split import mean_split, split_step
from shardwise.measure.trace_collectives import CollectiveCall, collective_calls, exposed_together_s
from shardwise.measure.trace_records import RankTrace
from shardwise.measure.trace_steps import StepWindow, step_windows
from shardwise.units import BytesPerSecond, FlopPerSecond, Seconds

PROCESSORS = "processors"
"""The device of a trace that holds none."""
STANDS_OUT_FRACTION = 0.02
"""Share of the step by which other ranks wait longer than a rank that is called a straggler."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rank:
    """One rank's steps, of all its files, with their collectives."""

    rank: int
    device_name: str
    windows: tuple[StepWindow, ...]
    calls: tuple[tuple[CollectiveCall, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TimedCall:
    """A collective with what the other ranks say about it."""

    rank: int
    call: CollectiveCall
    transfer_s: Seconds | None

    @property
    def wait_s(self) -> Seconds | None:
        """Time a collective spent waiting for ranks that came later: its duration without the transfer."""
        return None if self.transfer_s is None else self.call.work_s - self.transfer_s


def profile_traces(paths: Sequence[Path]) -> TraceProfile:
    """Read every file and report.

    A file that cannot be used is reported in ``warnings`` while another one can.

    Raises:
        TraceError: no file can be used; the error of the first.
    """
    traces: list[RankTrace] = []
    problems: list[ShardwiseError] = []
    for index, path in enumerate(paths):
        try:
            traces.extend(read_traces(path, fallback_rank=index))
        except ShardwiseError as problem:
            problems.append(problem)
    if not traces:
        raise problems[0]
    warnings = dict.fromkeys(f"{trace.path.name}: {warning}" for trace in traces for warning in trace.warnings)
    return profile_of(traces, warnings=(*warnings, *(problem.message for problem in problems)))


def profile_of(traces: Sequence[RankTrace], *, warnings: Iterable[str] = ()) -> TraceProfile:
    """The report of traces that were read."""
    ranks = [_rank([trace for trace in traces if trace.rank == rank]) for rank in sorted({t.rank for t in traces})]
    timed = tuple(_timed_calls(ranks))
    profiles = tuple(_rank_profile(rank, timed, is_alone=len(ranks) == 1) for rank in ranks)
    split = mean_split([profile.split for profile in profiles])
    num_steps = sum(len(rank.windows) for rank in ranks)
    units = tuple(_units(timed, num_steps=num_steps))
    kernels = tuple(_kernels(ranks, num_steps=num_steps))
    straggler = _straggler(profiles)
    collectives = tuple(_collectives(timed, num_steps=num_steps))
    return TraceProfile(
        ranks=profiles,
        world_size=max((trace.world_size or 0 for trace in traces), default=0) or None,
        split=split,
        collectives=collectives,
        units=units,
        kernels=kernels,
        straggler_rank=straggler,
        findings=find_costs(
            split=split,
            collectives=collectives,
            units=units,
            kernels=kernels,
            straggler=straggler,
            ranks=profiles,
        ),
        warnings=tuple(warnings),
    )


def _rank(traces: Sequence[RankTrace]) -> _Rank:
    """The steps of one rank, whose profiler may have written a file for each."""
    found = [(trace, window) for trace in traces for window in step_windows(trace)]
    return _Rank(
        rank=traces[0].rank,
        device_name=traces[0].device_name or ("" if traces[0].has_device else PROCESSORS),
        windows=tuple(window for _, window in found),
        calls=tuple(collective_calls(trace, window) for trace, window in found),
    )


def _timed_calls(ranks: Sequence[_Rank]) -> Iterator[_TimedCall]:
    """Every call with the shortest work that any rank of its group spent on the same one.

    The same collective is the n-th of its group and kind in its step: NCCL requires all ranks of a group to issue them
    in one order. A group of which only one rank was traced has no transfer.
    """
    same: dict[tuple[object, ...], list[tuple[int, CollectiveCall]]] = defaultdict(list)
    for rank in ranks:
        for window, calls in zip(rank.windows, rank.calls, strict=True):
            counts: dict[tuple[object, ...], int] = defaultdict(int)
            for call in calls:
                group = (window.name, call.group_key, call.kind, call.payload_bytes)
                same[*group, counts[group]].append((rank.rank, call))
                counts[group] += 1
    for members in same.values():
        is_shared = len({rank for rank, _ in members}) > 1
        transfer_s = min(call.work_s for _, call in members) if is_shared else None
        yield from (_TimedCall(rank=rank, call=call, transfer_s=transfer_s) for rank, call in members)


def _rank_profile(rank: _Rank, timed: Sequence[_TimedCall], *, is_alone: bool) -> RankProfile:
    works = [work for window in rank.windows for work in window.works if work.kind != "copy"]
    waits = [item.wait_s for item in timed if item.rank == rank.rank and item.wait_s is not None]
    num_steps = len(rank.windows)
    return RankProfile(
        rank=rank.rank,
        device_name=rank.device_name,
        num_steps=num_steps,
        num_kernels=round(len(works) / num_steps),
        graph_launched_fraction=sum(work.is_graph_launch for work in works) / max(1, len(works)),
        split=mean_split([split_step(window) for window in rank.windows]),
        wait_s=None if is_alone or not waits else sum(waits) / num_steps,
    )


def _collectives(timed: Sequence[_TimedCall], *, num_steps: int) -> Iterator[CollectiveFamily]:
    families: dict[tuple[object, ...], list[_TimedCall]] = defaultdict(list)
    for item in timed:
        families[item.call.kind, item.call.axis, item.call.group_size].append(item)
    for members in sorted(families.values(), key=lambda found: -sum(item.call.work_s for item in found)):
        call = members[0].call
        sizes = [item.call.payload_bytes for item in members]
        payload = None if None in sizes else round(sum(size or 0 for size in sizes) / num_steps)
        transfers = [item.transfer_s for item in members if item.transfer_s is not None]
        is_shared = len(transfers) == len(members)
        work_s = sum(item.call.work_s for item in members) / num_steps
        transfer_s = sum(transfers) / num_steps if is_shared else None
        yield CollectiveFamily(
            kind=call.kind,
            axis=call.axis,
            group_size=call.group_size,
            num_calls=len(members) / num_steps,
            payload_bytes=payload,
            work_s=work_s,
            wait_s=None if transfer_s is None else work_s - transfer_s,
            transfer_s=transfer_s,
            exposed_s=_exposed_s(members) / num_steps,
            bus_bandwidth_bytes_per_s=_bus_bandwidth(members),
        )


def _exposed_s(timed: Sequence[_TimedCall]) -> Seconds:
    """Exposed time of all ranks together, that of calls which overlap on one rank once."""
    by_rank: dict[int, list[CollectiveCall]] = defaultdict(list)
    for item in timed:
        by_rank[item.rank].append(item.call)
    return sum(exposed_together_s(calls) for calls in by_rank.values())


def _bus_bandwidth(members: Sequence[_TimedCall]) -> BytesPerSecond | None:
    """Median over calls, so that one late rank does not decide; from work where no transfer is known."""
    rates = [rate for item in members if (rate := _call_bandwidth(item)) is not None]
    return median(rates) if rates else None


def _call_bandwidth(item: _TimedCall) -> BytesPerSecond | None:
    call = item.call
    seconds = call.work_s if item.transfer_s is None else item.transfer_s
    if call.payload_bytes is None or not call.group_size or call.group_size < 2 or seconds <= 0 or call.kind is None:
        return None
    factors = {
        "all_reduce": all_reduce_factor(group_size=call.group_size),
        "all_gather": all_gather_factor(group_size=call.group_size),
        "reduce_scatter": all_gather_factor(group_size=call.group_size),
        "all_to_all": all_gather_factor(group_size=call.group_size),
    }
    return call.payload_bytes * factors.get(call.kind, 1.0) / seconds


def _units(timed: Sequence[_TimedCall], *, num_steps: int) -> Iterator[UnitExposure]:
    groups: dict[tuple[object, ...], list[_TimedCall]] = defaultdict(list)
    for item in timed:
        if item.call.unit:
            groups[item.call.unit, item.call.kind, item.call.is_backward].append(item)
    for members in groups.values():
        calls = [item.call for item in members]
        yield UnitExposure(
            unit=calls[0].unit,
            kind=calls[0].kind,
            is_backward=calls[0].is_backward,
            num_calls=len(calls) / num_steps,
            work_s=sum(call.work_s for call in calls) / num_steps,
            exposed_s=_exposed_s(members) / num_steps,
        )


def _dense_peak_flop_per_s(device_name: str) -> FlopPerSecond | None:
    """Dense bf16 peak of the device; ``None`` when the catalogue lacks the device or its peak."""
    gpu_id = driver_gpu_id(device_name)
    return load_gpu(gpu_id).peak_flop_per_s("bf16") or None if gpu_id else None


def _kernels(ranks: Sequence[_Rank], *, num_steps: int) -> Iterator[KernelShare]:
    peak = _dense_peak_flop_per_s(ranks[0].device_name)
    durations: dict[str, list[tuple[float, float | None]]] = defaultdict(list)
    for rank in ranks:
        for window in rank.windows:
            for work in window.works:
                if work.kind != "copy" and work.family != "communication":
                    durations[work.family].append((work.duration_s, work.flop))
    whole_s = sum(seconds for found in durations.values() for seconds, _ in found)
    for family in ("gemm", "attention", "memory_bound", "other"):
        found = durations.get(family)
        if not found:
            continue
        shaped = [(seconds, flop) for seconds, flop in found if flop is not None]
        shaped_s = sum(seconds for seconds, _ in shaped)
        rate = sum(flop for _, flop in shaped) / shaped_s if shaped_s else None
        yield KernelShare(
            family=family,
            num_kernels=len(found) / num_steps,
            duration_s=sum(seconds for seconds, _ in found) / num_steps,
            share_fraction=sum(seconds for seconds, _ in found) / whole_s if whole_s else 0.0,
            flop_per_s=rate,
            peak_fraction=rate / peak if rate and peak else None,
        )


def _straggler(profiles: Sequence[RankProfile]) -> int | None:
    """The rank that waits least, when the others wait noticeably longer."""
    waits = {profile.rank: profile.wait_s for profile in profiles if profile.wait_s is not None}
    if len(waits) < 2:
        return None
    least = min(waits, key=lambda rank: waits[rank])
    others = [wait for rank, wait in waits.items() if rank != least]
    step_s = sum(profile.split.step_s for profile in profiles) / len(profiles)
    return least if median(others) - waits[least] > STANDS_OUT_FRACTION * step_s else None
