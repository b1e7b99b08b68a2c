"""What one measured run says about another: its ratio of measured to predicted time, fading with what differs.

A run that took 20 % longer than predicted says that the same plan on twice the ranks will, and little about another
precision or a tenth of the width: what the model leaves out belongs to kernels, sizes and engines. One factor for all
plans of a source carries the error of the measured row over to rows it has nothing to do with.
"""

from dataclasses import dataclass
from math import exp, log2

from shardwise.plan import Plan

FADING_PER_DOUBLING = 0.1
"""Decrease of the carried share's logarithm for each doubling of width, micro-batch, sequence, tensor or pipeline
degree. This and the next were chosen on the families that are never reported (VTRAINM, LLMF, AUTOMODEL, TR8): one row
carried over whole leaves 9.8 % in the mean of their medians, fading 7.7, at half the strength 8.8 and at twice 7.8
(``benchmarks/one_reading.py``)."""
FADING_PER_CHANGE = 0.1
"""Decrease of that logarithm for another precision, recomputation, part, engine, adapter, compilation, or experts
instead of none."""
FADING_PER_DOUBLED_RANKS = 0.03
"""Decrease of that logarithm for twice the GPUs: a third of that of a size, since what is measured of a rank stays."""


@dataclass(frozen=True, slots=True)
class PlanSizes:
    """The sizes that decide which kernels and links a plan uses, and its habits."""

    sizes: tuple[float, ...]
    """Width, tokens of a rank's micro-batch, sequence, tensor and pipeline degree, in factors of two."""
    num_ranks: int
    habits: tuple[object, ...]


def plan_sizes(plan: Plan) -> PlanSizes:
    """The sizes and habits of a plan."""
    layout, recipe = plan.layout, plan.recipe
    tokens = recipe.micro_batch_size * recipe.seq_len / layout.cp
    return PlanSizes(
        sizes=tuple(log2(size) for size in (plan.model.hidden_size, tokens, recipe.seq_len, layout.tp, layout.pp)),
        num_ranks=layout.world_size,
        habits=(
            recipe.precision,
            (recipe.recompute, recipe.recompute_modules),
            plan.cluster.gpu.id,
            plan.engine,
            plan.model.is_moe,
            recipe.compile,
            recipe.adapter,
        ),
    )


def carried_share(measured: PlanSizes, other: PlanSizes) -> float:
    """How much of one plan's logarithmic error another one is expected to have: 1 for the same sizes and habits.

    >>> small = PlanSizes((12.0, 13.0, 13.0, 0.0, 0.0), 8, ("bf16-mixed",))
    >>> large = PlanSizes((13.0, 13.0, 13.0, 3.0, 0.0), 64, ("bf16-mixed",))
    >>> carried_share(small, small), round(carried_share(small, large), 2)
    (1.0, 0.61)
    """
    doublings = sum(abs(one - two) for one, two in zip(measured.sizes, other.sizes, strict=True))
    changes = sum(one != two for one, two in zip(measured.habits, other.habits, strict=True))
    ranks = abs(log2(measured.num_ranks / other.num_ranks))
    return exp(-FADING_PER_DOUBLING * doublings - FADING_PER_CHANGE * changes - FADING_PER_DOUBLED_RANKS * ranks)


def carried_ratio(ratio: float, measured: PlanSizes, other: PlanSizes) -> float:
    """Factor on the predicted time of a plan, given measured over predicted time of another.

    >>> alike = PlanSizes((12.0,), 8, ())
    >>> carried_ratio(1.2, alike, alike), round(carried_ratio(1.2, alike, PlanSizes((22.0,), 8, ())), 2)
    (1.2, 1.07)
    """
    return float(ratio ** carried_share(measured, other))
