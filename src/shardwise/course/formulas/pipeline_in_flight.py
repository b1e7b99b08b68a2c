"""Closed forms of papers for the micro-batches that one pipeline rank holds at once; no prediction uses them."""


def gpipe_in_flight(*, num_microbatches: int) -> int:
    """GPipe holds all m micro-batches before the first backward.

    Source: Huang et al. 2019, arXiv:1811.06965, section 2.3.
    Assumes: no recomputation; with it the stage inputs of all m remain.

    >>> gpipe_in_flight(num_microbatches=16)
    16
    """
    return num_microbatches


def one_f_one_b_in_flight(*, pp: int, stage: int, num_microbatches: int) -> int:
    """1F1B holds ``min(m, p - stage)`` micro-batches on a stage.

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1 (PipeDream-Flush).
    Assumes: stage 0 is the first.

    >>> [one_f_one_b_in_flight(pp=4, stage=stage, num_microbatches=16) for stage in range(4)]
    [4, 3, 2, 1]
    """
    return min(num_microbatches, pp - stage)


def interleaved_in_flight(*, pp: int, vpp: int) -> float:
    """The interleaved schedule holds ``p + (p - 1) / v`` micro-batches on the first stage.

    Source: Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.3: the first stage stores ``L (1 + (p-1)/(p v))``.
    Assumes: enough micro-batches; Megatron's order.

    >>> interleaved_in_flight(pp=8, vpp=2)
    11.5
    """
    return pp + (pp - 1) / vpp


def zb_h1_in_flight(*, pp: int, num_microbatches: int) -> int:
    """ZB-H1 holds p micro-batches on every rank.

    Source: Qi et al. 2023, arXiv:2401.10241, table 1 (memory of 1F1B's first stage everywhere).
    Assumes: weight gradients are delayed as far as that memory allows.

    >>> zb_h1_in_flight(pp=4, num_microbatches=16)
    4
    """
    return min(num_microbatches, pp)


def zb_h2_in_flight(*, pp: int, num_microbatches: int) -> int:
    """ZB-H2 holds ``2p - 1`` micro-batches.

    Source: Qi et al. 2023, arXiv:2401.10241, table 1.
    Assumes: enough micro-batches to fill the pipeline twice.

    >>> zb_h2_in_flight(pp=4, num_microbatches=16)
    7
    """
    return min(num_microbatches, 2 * pp - 1)


def zbv_in_flight(*, pp: int, num_microbatches: int) -> int:
    """ZBV holds the equivalent of p micro-batches on every rank.

    Source: sail-sg/zero-bubble-pipeline-parallelism, README (ZBV: memory of 1F1B).
    Assumes: two chunks per rank in a V.

    >>> zbv_in_flight(pp=4, num_microbatches=16)
    4
    """
    return min(num_microbatches, pp)


def dualpipe_in_flight(*, pp: int, num_microbatches: int) -> float:
    """DualPipe holds ``P + 1`` chunks, each half of a rank's layers in the V-shaped form: ``p + 1/2`` micro-batches.

    Source: deepseek-ai/DualPipe, README; checked against the order torch's ``ScheduleDualPipeV`` makes.
    Assumes: the V-shaped form without the doubled parameters.

    >>> dualpipe_in_flight(pp=4, num_microbatches=16)
    4.5
    """
    return min(float(num_microbatches), pp + 0.5)
