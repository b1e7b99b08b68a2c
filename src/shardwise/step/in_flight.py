"""How many micro-batches' activations one pipeline stage keeps at once, and what waits between halves of backward."""

from shardwise.layout import Schedule


def in_flight_micro_batches(*, schedule: Schedule, stage: int, pp: int, vpp: int, num_microbatches: int) -> float:
    """Whole-stage activation sets alive at the worst moment of a stage.

    GPipe keeps every micro-batch. 1F1B keeps ``p - stage``. Interleaved 1F1B keeps
    ``(v - 1) g + 2 (p - stage - 1) + 1`` chunks of 1/v stage each, with g micro-batches a round (p when p divides m).
    Zero-bubble schedules delay the weight gradient, so every stage fills up to p (ZB-H1, ZBV) or 2p - 1 (ZB-H2) sets;
    DualPipeV keeps p + 1/2, and DualPipe ``p + 1`` of a rank's two chunks, each 1/p of the model.

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; Qi et al. 2024, arXiv:2401.10241, section 2.3 and
        table 4; deepseek-ai/DualPipe README.
    Assumes: equal micro-batches.

    >>> in_flight_micro_batches(schedule="1f1b", stage=0, pp=4, vpp=1, num_microbatches=16)
    4.0
    >>> in_flight_micro_batches(schedule="interleaved", stage=0, pp=4, vpp=2, num_microbatches=16)
    5.5
    """
    if pp == 1:
        return 1.0
    if schedule == "gpipe":
        return float(num_microbatches)
    if schedule == "1f1b":
        return float(min(num_microbatches, pp - stage))
    if schedule == "interleaved":
        rounds = num_microbatches // max(1, num_microbatches // pp)
        return min(num_microbatches * vpp, (vpp - 1) * rounds + 2 * (pp - stage - 1) + 1) / vpp
    full = {
        "zb-h1": float(pp),
        "zbv": float(pp),
        "zb-h2": 2.0 * pp - 1,
        "dualpipev": pp + 0.5,
        "dualpipe": (pp + 1) / 2,
    }[schedule]
    return min(float(num_microbatches), full)


def waits_for_weights(*, pp: int, schedule: Schedule, stage: int) -> bool:
    """Whether gradients of weights wait on a stage: behind the first one of zb-h1.

    Not counted are the V-shaped schedules, whose ranks hold most where few wait.
    """
    return pp > 1 and schedule == "zb-h1" and stage > 0


def waiting_sets(*, pp: int, vpp: int, schedule: Schedule, stage: int, num_microbatches: int) -> float:
    """Micro-batches of a whole stage whose weights' half waits while another's inputs' half runs.

    Of torch's zb-h1 as many chunks as there are stages before.

    >>> waiting_sets(pp=4, vpp=1, schedule="zb-h1", stage=3, num_microbatches=8)
    3.0
    """
    waits = waits_for_weights(pp=pp, schedule=schedule, stage=stage)
    return waits * min(stage, num_microbatches - 1) / vpp


def times_made_again(*, pp: int, vpp: int, schedule: Schedule, stage: int) -> float:
    """How often our trainer makes a recomputed block of a stage again for one micro-batch: in either half of backward.

    The first chunk has no inputs to differentiate and goes backward as a whole, and so do nearly all of DualPipeV.

    Source: ``train/recompute_halves.py``, runs of which were counted for two stages and eight micro-batches
        (DualPipeV 1.06 and 1.13).

    >>> [times_made_again(pp=4, vpp=2, schedule="zb-h1", stage=stage) for stage in (0, 1)]
    [1.5, 2.0]
    """
    if pp == 1 or schedule not in ("zb-h1", "zbv"):
        return 1.0
    chunks = 2 if schedule == "zbv" else vpp
    return 2.0 - (stage == 0) / chunks
