"""Time of a pipeline whose stages differ."""


def uneven_pipeline_s(*, max_stage_s: float, sum_stages_s: float, num_microbatches: int) -> float:
    """Makespan of 1F1B or GPipe with uneven stages: ``(m - 1) max + sum``.

    Source: Huang et al. 2019, arXiv:1811.06965, generalised to unequal stages; checked with an event simulation.
    Assumes: times of one micro-batch, forward and backward together; free communication.

    >>> uneven_pipeline_s(max_stage_s=3.0, sum_stages_s=12.0, num_microbatches=16)
    57.0
    """
    return (num_microbatches - 1) * max_stage_s + sum_stages_s
