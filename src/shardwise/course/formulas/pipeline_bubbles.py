"""Idle time of pipeline schedules, in the two denominators tutorials mix up.

*Over ideal* divides by the time without a bubble, *fraction* by the time of the step. p = 4, m = 16 gives 18.75 % and
15.79 %; both are right.
"""


def bubble_over_ideal(*, pp: int, num_microbatches: int, vpp: int = 1) -> float:
    """Idle time of one step divided by the time the step would take with no bubble.

    ``(p - 1) / (v * m)``. It is not the idle share of the step; that is :func:`idle_fraction`.

    Args:
        pp: p, pipeline stages.
        num_microbatches: m, micro-batches per data-parallel rank and step.
        vpp: v, model chunks held by each rank; 1 for plain GPipe or 1F1B.

    Source: Narayanan et al. 2021, arXiv:2104.04473, sections 2.2.1 and 2.2.2.
    Assumes: equal stages, free communication.

    >>> bubble_over_ideal(pp=4, num_microbatches=16)
    0.1875
    """
    return (pp - 1) / (vpp * num_microbatches)


def idle_fraction(*, pp: int, num_microbatches: int, vpp: int = 1) -> float:
    """Idle share of one step: ``(p - 1) / (v m + p - 1)``.

    Source: Huang et al. 2019, arXiv:1811.06965, section 2.3; with v from Narayanan et al. 2021, arXiv:2104.04473.
    Assumes: equal stages, free communication.

    >>> round(idle_fraction(pp=4, num_microbatches=16), 4)
    0.1579
    """
    return (pp - 1) / (vpp * num_microbatches + pp - 1)


def one_f_one_b_idle_s(*, pp: int, forward_s: float, backward_s: float) -> float:
    """Idle time per step of GPipe and 1F1B: ``(p - 1)(F + B)`` with B the whole backward.

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.1.
    Assumes: equal stages; times are of one micro-batch on one stage.

    >>> one_f_one_b_idle_s(pp=4, forward_s=1.0, backward_s=2.0)
    9.0
    """
    return (pp - 1) * (forward_s + backward_s)


def interleaved_idle_s(*, pp: int, vpp: int, forward_s: float, backward_s: float) -> float:
    """Idle time per step of the interleaved schedule: ``(p - 1)(F + B) / v``.

    Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2.2.
    Assumes: equal chunks; micro-batches a multiple of p; times are of one micro-batch on all chunks of a stage.

    >>> interleaved_idle_s(pp=4, vpp=2, forward_s=1.0, backward_s=2.0)
    4.5
    """
    return one_f_one_b_idle_s(pp=pp, forward_s=forward_s, backward_s=backward_s) / vpp


def zb_h1_idle_s(*, pp: int, forward_s: float, input_backward_s: float, weight_backward_s: float) -> float:
    """Idle time per step of ZB-H1: ``(p - 1)(F + B - W)``.

    Source: Qi et al. 2023, arXiv:2401.10241, table 1.
    Assumes: B is the input gradient and W the weight gradient of one micro-batch on one stage; memory of 1F1B.

    >>> zb_h1_idle_s(pp=4, forward_s=1.0, input_backward_s=1.0, weight_backward_s=1.0)
    3.0
    """
    return (pp - 1) * max(0.0, forward_s + input_backward_s - weight_backward_s)


def zb_h2_idle_s(*, pp: int, forward_s: float, input_backward_s: float, weight_backward_s: float) -> float:
    """Idle time per step of ZB-H2: ``(p - 1)(F + B - 2W)``, zero when the three are equal.

    Source: Qi et al. 2023, arXiv:2401.10241, table 1.
    Assumes: twice the activations of 1F1B, and no optimizer barrier between steps.

    >>> zb_h2_idle_s(pp=4, forward_s=1.0, input_backward_s=1.0, weight_backward_s=1.0)
    0.0
    """
    return (pp - 1) * max(0.0, forward_s + input_backward_s - 2 * weight_backward_s)


def dualpipe_idle_s(*, pp: int, forward_backward_s: float, backward_s: float, weight_backward_s: float) -> float:
    """Idle time per step of DualPipe: ``(P/2 - 1)(F&B + B - 3W)``.

    Source: deepseek-ai/DualPipe, README (table of pipeline bubbles and memory).
    Assumes: an overlapped forward and backward takes ``forward_backward_s``; twice the parameters on every rank.

    >>> dualpipe_idle_s(pp=8, forward_backward_s=3.0, backward_s=2.0, weight_backward_s=1.0)
    6.0
    """
    return (pp / 2 - 1) * max(0.0, forward_backward_s + backward_s - 3 * weight_backward_s)


def start_skew_s(*, pp: int, chunk_forward_s: float) -> float:
    """Time the last stage waits before its first forward: ``(p - 1)`` chunk forwards.

    A zero-bubble schedule still pays it in the makespan of a step, unless the optimizer step needs no barrier.

    Source: Qi et al. 2023, arXiv:2401.10241, section 4 (optimizer post-validation); checked with an event simulation.
    Assumes: equal chunks, free communication.

    >>> start_skew_s(pp=4, chunk_forward_s=0.5)
    1.5
    """
    return (pp - 1) * chunk_forward_s
