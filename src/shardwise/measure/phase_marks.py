"""The names under which our runtime marks the phases of a step for the profiler, and when they were open."""

from typing import Final

from shardwise.measure.intervals import Intervals, union
from shardwise.measure.trace_records import RankTrace

FORWARD: Final = "shardwise::forward"
"""The whole model or one pipeline chunk, loss included."""
LOSS: Final = "shardwise::loss"
"""Output projection and loss, inside forward."""
BLOCK: Final = "shardwise::block"
"""A block that forgets what it computed; outside forward it is being computed again."""
OPTIMIZER: Final = "shardwise::optimizer"
"""Everything after the last backward: sums over ranks, clipping, the update."""
STEP: Final = "ProfilerStep#"
"""The profiler's own mark, which the reader of traces knows."""


def marked(trace: RankTrace, name: str) -> Intervals:
    """When a mark was open on any thread of the host."""
    return union((mark.start_s, mark.end_s) for mark in trace.marks if mark.name == name)
