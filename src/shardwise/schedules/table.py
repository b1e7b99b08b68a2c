"""Every pipeline schedule by name.

Where its order was checked and where it differs on purpose: ``docs/schedules.md``.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from shardwise.schedules.fill_and_drain import gpipe_order, looped_bfs_order
from shardwise.schedules.kind import ScheduleKind
from shardwise.schedules.one_forward_one_backward import interleaved_order, one_f_one_b_order
from shardwise.schedules.v_shaped import dualpipe_order, dualpipev_order, zbv_order
from shardwise.schedules.zero_bubble import zb_h1_order, zb_h2_order

Schedule = Literal[
    "gpipe",
    "1f1b",
    "interleaved",
    "zb-h1",
    "zb-h2",
    "zbv",
    "dualpipev",
    "dualpipe",
]
"""The schedules that a plan may name."""
ScheduleName: TypeAlias = Schedule | Literal["looped-bfs"]

DEFAULT_SCHEDULE: Schedule = "1f1b"
"""A plan that names neither a schedule nor chunks gets this one, and every engine with pipelines has it."""
CHUNKED_SCHEDULE: Schedule = "interleaved"
"""A plan that names chunks and no schedule gets this one."""

SCHEDULE_KINDS: Mapping[ScheduleName, ScheduleKind] = MappingProxyType(
    {
        "gpipe": ScheduleKind(
            order=gpipe_order,
            num_chunks=1,
            runs_forwards_first=True,
            # 1F1B has the same bubble with fewer micro-batches in flight.
            is_searched=False,
            torch_class="ScheduleGPipe",
        ),
        "1f1b": ScheduleKind(
            order=one_f_one_b_order, num_chunks=1, least_microbatches_per_rank=1, torch_class="Schedule1F1B"
        ),
        "looped-bfs": ScheduleKind(order=looped_bfs_order, runs_forwards_first=True, torch_class="ScheduleLoopedBFS"),
        # Interleaving one chunk with itself is 1F1B.
        "interleaved": ScheduleKind(order=interleaved_order, least_chunks=2, torch_class="ScheduleInterleaved1F1B"),
        "zb-h1": ScheduleKind(
            order=zb_h1_order,
            splits_backward=True,
            filling="weight gradients",
            torch_class="ScheduleInterleavedZeroBubble",
        ),
        "zb-h2": ScheduleKind(
            order=zb_h2_order,
            num_chunks=1,
            splits_backward=True,
            least_microbatches_per_rank=1,
            # It runs twice the forwards ahead.
            steady_microbatches_per_rank=4,
        ),
        "zbv": ScheduleKind(
            order=zbv_order,
            num_chunks=2,
            is_v_shaped=True,
            splits_backward=True,
            filling="v",
            torch_class="ScheduleZBVZeroBubble",
        ),
        "dualpipev": ScheduleKind(
            order=dualpipev_order,
            num_chunks=2,
            is_v_shaped=True,
            splits_backward=True,
            overlaps_passes=True,
            least_microbatches_per_rank=2,
            filling="overlapped v",
            torch_class="ScheduleDualPipeV",
        ),
        "dualpipe": ScheduleKind(
            order=dualpipe_order,
            num_chunks=2,
            is_v_shaped=True,
            model_copies=2,
            splits_backward=True,
            overlaps_passes=True,
            least_microbatches_per_rank=2,
            filling="both ends",
        ),
    }
)
SCHEDULES: tuple[Schedule, ...] = tuple(name for name in get_args(Schedule) if name in SCHEDULE_KINDS)
"""Schedules that a plan may name; the columns of a search hold positions in it."""
SPLITTING_SCHEDULES: tuple[Schedule, ...] = tuple(
    name for name in SCHEDULES if SCHEDULE_KINDS[name].torch_splits_backward
)
"""Schedules that torch runs with backward in two halves."""
TWICE_HELD_SCHEDULES: tuple[Schedule, ...] = tuple(name for name in SCHEDULES if SCHEDULE_KINDS[name].model_copies == 2)
"""Schedules whose ranks hold a stage of each of two copies of the model."""
TORCH_SCHEDULES: frozenset[Schedule] = frozenset(
    name for name in SCHEDULES if SCHEDULE_KINDS[name].torch_class is not None
)
"""Schedules that ``torch.distributed.pipelining`` runs."""
