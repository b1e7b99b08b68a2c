"""What a stage waits for others, in closed form: while a pipeline fills and drains, and of messages beside computation.

Every rank sends to the next chunk and to the one before on a stream of its own each, and nothing else is slowed. What a
chunk computes no longer hides them where its input is needed before the message is there: once around a pipeline that
fills and drains, and in every micro-batch that follows as far as messages take longer than what may run meanwhile.
"""

from dataclasses import dataclass
from typing import get_args

import numpy as np

from shardwise.schedules.kind import Filling
from shardwise.schedules.table import SCHEDULE_KINDS, SCHEDULES
from shardwise.search.candidates import Candidates, FloatColumn, IntColumn

__all__ = ["HIDES", "IS_V_SHAPED", "SPLITS", "WAITS", "StagePasses", "hop_s", "messages_s"]

KINDS = [SCHEDULE_KINDS[name] for name in SCHEDULES]
WAITS = np.asarray([kind.is_plain for kind in KINDS])
"""Schedules whose stages wait for each other's messages: nothing runs beside them."""
IS_V_SHAPED = np.asarray([kind.is_v_shaped for kind in KINDS])
"""Schedules of two chunks a stage whose last stage hands to itself."""
SPLITS = np.asarray([kind.splits_backward for kind in KINDS])
HIDES = np.asarray([kind.overlaps_passes for kind in KINDS])
FILLS_WITH = {filling: np.asarray([kind.filling == filling for kind in KINDS]) for filling in get_args(Filling)}
"""By position in ``SCHEDULES``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePasses:
    """Seconds of one micro-batch on one stage of every row, all its chunks together, with what they wait for."""

    forward: FloatColumn
    input_backward: FloatColumn
    """Recomputation and input gradient."""
    weight_backward: FloatColumn


def hop_s(
    rows: Candidates,
    passes: StagePasses,
    *,
    chunk_fraction: FloatColumn,
    depth: IntColumn,
    rounds: IntColumn,
) -> FloatColumn:
    """Seconds that the slowest stage of every row is idle for each of the others while the pipeline fills and drains.

    Args:
        rows: what is timed.
        passes: of the other stages, in the mean.
        chunk_fraction: share of a stage in its largest chunk.
        depth: stages from one end of the pipeline to the other.
        rounds: micro-batches that each of them runs.

    Source: of equal stages it is what ``shardwise.simulate.pipeline`` finds (``tests/search/test_pipeline_waits.py``).
    Assumes: at least as many micro-batches as stages, twice as many for DualPipeV; free messages. Of zbv whose forward
        or weight gradient takes longer than its input gradient some is left out.
    """
    forward, backward, weight = passes.forward, passes.input_backward, passes.weight_backward
    full = forward + backward + weight
    plain = full * chunk_fraction
    split = np.maximum(forward, full - 2 * weight) * chunk_fraction
    few = np.maximum(backward, (forward + backward) / 2)
    v_shaped = np.where(rounds < 2 * depth, few, np.maximum(forward / 2, backward - weight))
    both_ways = backward + (forward - weight) / 2 - forward / (2 * np.maximum(1, depth - 1))
    by_filling: dict[Filling, FloatColumn] = {
        "passes": plain,
        "weight gradients": split,
        "v": v_shaped,
        "overlapped v": np.maximum(forward, both_ways),
        "both ends": forward / 2,
    }
    asked = [FILLS_WITH[filling][rows.schedule] for filling in by_filling]
    found: FloatColumn = np.select(asked, list(by_filling.values()))
    return found


def messages_s(
    rows: Candidates, *, message_s: FloatColumn, passes: StagePasses, depth: IntColumn, rounds: IntColumn
) -> FloatColumn:
    """Seconds that a step of every row is longer than with free messages; 0 where stages wait for them anyway.

    With k chunks a stage, p stages and m micro-batches, s seconds a message: ``2 (k p - 1) s`` while the pipeline fills
    and drains, and for each of the ``m - p`` others a part of what k messages take beyond what runs meanwhile.

    Args:
        rows: what is timed.
        message_s: one message between neighbours, one direction.
        passes: of the longest stage.
        depth: stages from one end of the pipeline to the other.
        rounds: micro-batches that each of them runs.

    Source: fitted to ``shardwise.simulate.pipeline``, which ``tests/search/test_pipeline_waits.py`` compares.
    Assumes: equal stages; at least as many micro-batches as stages.
    """
    chunks = np.where(IS_V_SHAPED[rows.schedule], 2, rows.vpp)
    filling = 2 * (chunks * depth - 1) * message_s
    others = 1.0 - 1.0 / depth
    is_v_shaped = IS_V_SHAPED[rows.schedule]
    is_zero_bubble = SPLITS[rows.schedule] & ~is_v_shaped
    share = np.where(is_zero_bubble, 2 * others, np.where(is_v_shaped, others, 1.0 - 1.0 / (depth * chunks)))
    between = np.minimum(passes.forward, passes.input_backward) + passes.weight_backward
    between = np.where(HIDES[rows.schedule], 0.0, between)
    meanwhile = np.where(is_v_shaped, between, np.where(is_zero_bubble, passes.weight_backward / 2, passes.forward))
    each = share * np.maximum(0.0, chunks * message_s - meanwhile)
    added = filling + np.maximum(0, rounds - depth) * each
    found: FloatColumn = np.where(WAITS[rows.schedule] | (depth == 1), 0.0, added)
    return found
