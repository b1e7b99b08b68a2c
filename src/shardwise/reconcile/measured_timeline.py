"""A profiled step of our native engine as the timeline records that predicted steps are drawn from."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from shardwise.measure.gloo_kinds import with_asked_kinds
from shardwise.measure.intervals import holds
from shardwise.measure.phase_marks import BLOCK, FORWARD, OPTIMIZER, marked
from shardwise.measure.rank_trace import read_rank_trace
from shardwise.measure.trace_collectives import CollectiveCall, collective_calls
from shardwise.measure.trace_records import RankTrace, Work
from shardwise.measure.trace_steps import StepWindow, step_windows
from shardwise.predict.timeline import StepTimeline, TimelineRank
from shardwise.simulate.spans import Span, SpanCategory

TRACE_NAME = re.compile(r"^step-(\d+)-rank-(\d+)\.json(\.gz)?$")
NOTE = "measured: the kernels of one profiled step, by the phase that launched them"


def last_traces(folder: Path) -> dict[int, Path]:
    """The trace of the last profiled step of every rank, in a run folder; empty without any."""
    found: dict[int, tuple[int, Path]] = {}
    for path in sorted((folder / "traces").glob("step-*-rank-*.json*")):
        name = TRACE_NAME.match(path.name)
        if name is not None:
            step, rank = int(name[1]), int(name[2])
            found[rank] = max(found.get(rank, (step, path)), (step, path))
    return {rank: path for rank, (_, path) in sorted(found.items())}


def measured_timeline(folder: Path, *, ranks: Sequence[tuple[int, int]]) -> StepTimeline | None:
    """The last profiled step of a run.

    Args:
        ranks: rank and pipeline stage of those that are drawn; ranks without a trace are left out.

    Returns:
        ``None`` where none of the ranks was profiled.

    Raises:
        TraceError: a trace is damaged beyond use.
    """
    paths = last_traces(folder)
    drawn = [(rank, stage, _only_step(paths[rank], rank)) for rank, stage in ranks if rank in paths]
    if not drawn:
        return None
    return StepTimeline(
        step_s=max(window.duration_s for _, _, (_, window) in drawn),
        num_ranks=len(paths),
        num_stages=len({stage for _, stage in ranks}),
        ranks=tuple(
            TimelineRank(rank=rank, stage=stage, spans=tuple(_spans(trace, window, stage=stage)))
            for rank, stage, (trace, window) in drawn
        ),
        flows=(),
        notes=(NOTE,),
        source="measured",
    )


def _only_step(path: Path, rank: int) -> tuple[RankTrace, StepWindow]:
    trace = with_asked_kinds(read_rank_trace(path, fallback_rank=rank))
    return trace, step_windows(trace)[-1]


def _spans(trace: RankTrace, window: StepWindow, *, stage: int) -> Iterator[Span]:
    """Kernels on the stream that computes, collectives on one stream an axis; all from the start of the step."""
    phases = _Phases(trace)
    for work in window.works:
        if work.kind != "copy" and work.family != "communication":
            yield _span(work, f"stage {stage}/compute", work.name, phases.category(work), window)
        elif work.kind == "copy":
            yield _span(work, f"stage {stage}/host", work.name, "offload", window)
    for call in collective_calls(trace, window):
        if call.kind is not None:
            yield _span(call, f"stage {stage}/{call.axis or 'group'}", _call_name(call), call.kind, window)


def _call_name(call: CollectiveCall) -> str:
    name = str(call.kind).replace("_", "-")
    return f"{name} {call.unit}" if call.unit else name


def _span(what: Work | CollectiveCall, stream: str, name: str, category: SpanCategory, window: StepWindow) -> Span:
    return Span(
        stream=stream,
        name=name,
        category=category,
        start_s=what.start_s - window.start_s,
        end_s=what.end_s - window.start_s,
    )


class _Phases:
    """Which phase of the step launched a kernel, by the marks of our runtime."""

    def __init__(self, trace: RankTrace) -> None:
        self._forward = marked(trace, FORWARD)
        self._blocks = marked(trace, BLOCK)
        self._optimizer = marked(trace, OPTIMIZER)

    def category(self, work: Work) -> SpanCategory:
        """What no mark covers is backward, which runs on autograd's own thread."""
        moment_s = work.issued_s
        if holds(self._forward, moment_s):
            return "forward"
        if holds(self._optimizer, moment_s):
            return "optimizer"
        return "recompute" if holds(self._blocks, moment_s) else "backward"
