"""Micro-batches whose activations a pipeline stage keeps, and those that wait between the halves of backward.

``schedules/kept_by_order.py`` counts what an order keeps; here it is asked about the order of a full pipeline.
"""

from functools import lru_cache

from shardwise.schedules.actions import Degrees
from shardwise.schedules.kept_by_order import peak_sets
from shardwise.schedules.one_forward_one_backward import even_round_size
from shardwise.schedules.table import SCHEDULE_KINDS, Schedule

FULL_ROUNDS = 2
"""Rounds of one micro-batch for every rank that fill a pipeline of any schedule: further ones add nothing to what a
stage keeps, unless all forwards come first."""


def in_flight_micro_batches(
    *, schedule: Schedule, stage: int, pp: int, vpp: int, num_microbatches: int, num_per_round: int | None = None
) -> float:
    """Activation sets of a whole stage that are alive at its worst moment.

    They are counted over the order of the stage's passes in a full pipeline; a step of few micro-batches keeps no more
    than those. A set is alive until the gradients of its weights are done.

    ``num_per_round`` are the micro-batches that an interleaved stage runs before its next chunk; ``None`` divides them
    evenly, as torch does.

    Assumes: equal micro-batches. Rounds of ZB-H1 hold p of them, which torch's hold where p divides their number.

    >>> in_flight_micro_batches(schedule="1f1b", stage=0, pp=4, vpp=1, num_microbatches=16)
    4.0
    >>> in_flight_micro_batches(schedule="interleaved", stage=0, pp=4, vpp=2, num_microbatches=16)
    5.5
    """
    if pp == 1:
        return 1.0
    kind = SCHEDULE_KINDS[schedule]
    if kind.runs_forwards_first:
        return float(num_microbatches)
    # A round is pp micro-batches long, but that of interleaving is as long as the engine makes it.
    has_own_round_size = kind.runs_in_rounds and not kind.splits_backward
    own_size = num_per_round or even_round_size(pp=pp, num_microbatches=num_microbatches)
    per_round = own_size if has_own_round_size else pp
    return min(float(num_microbatches), _kept_when_full(schedule, stage, pp, kind.num_chunks or vpp, per_round))


@lru_cache(maxsize=4096)
def _kept_when_full(schedule: Schedule, stage: int, pp: int, num_chunks: int, per_round: int) -> float:
    degrees = Degrees(
        pp=pp, vpp=num_chunks, num_microbatches=FULL_ROUNDS * per_round, num_microbatches_per_round=per_round
    )
    return peak_sets(SCHEDULE_KINDS[schedule].order(stage, degrees)) / num_chunks


def waits_for_weights(*, pp: int, schedule: Schedule, stage: int) -> bool:
    """Whether gradients of weights wait on a stage: behind the first one of zb-h1."""
    return pp > 1 and SCHEDULE_KINDS[schedule].puts_weights_off and stage > 0


def waiting_sets(*, pp: int, vpp: int, schedule: Schedule, stage: int, num_microbatches: int) -> float:
    """Micro-batches of a whole stage whose weights' half waits while another's inputs' half runs.

    Under torch's zb-h1 these are as many chunks as there are stages before.

    >>> waiting_sets(pp=4, vpp=1, schedule="zb-h1", stage=3, num_microbatches=8)
    3.0
    """
    waits = waits_for_weights(pp=pp, schedule=schedule, stage=stage)
    return waits * min(stage, num_microbatches - 1) / vpp


def times_made_again(*, pp: int, vpp: int, schedule: Schedule, stage: int) -> float:
    """How often our trainer recomputes a block of a stage for one micro-batch: in either half of backward.

    The first chunk has no inputs to differentiate and goes backward as a whole, and so do nearly all of DualPipeV.

    Source: ``train/recompute_halves.py``, runs of which were counted for two stages and eight micro-batches
        (DualPipeV 1.06 and 1.13).

    >>> [times_made_again(pp=4, vpp=2, schedule="zb-h1", stage=stage) for stage in (0, 1)]
    [1.5, 2.0]
    """
    kind = SCHEDULE_KINDS[schedule]
    if pp == 1 or kind.overlaps_passes or not kind.torch_splits_backward:
        return 1.0
    return 2.0 - (stage == 0) / (kind.num_chunks or vpp)
