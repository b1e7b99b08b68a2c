"""How far a measured peak of memory may lie from the predicted one, by what is known of the engine and the reading.

The figures are residuals (measured over predicted bytes, 5th and 95th percentile) of the families that ``validate``
prints as fitted; it judges them on the others, and a test holds the two together.
"""

from shardwise.columns import either
from shardwise.plan import Plan
from shardwise.prediction import MemoryPrediction
from shardwise.step.native_engine import is_native_engine

Fractions = tuple[float, float]
"""Lowest and highest measured over predicted bytes."""

ALLOCATED: Fractions = (0.93, 1.08)
"""Allocated and reserved memory: 60 readings without adapters and 28 with LoRA. The high side, on which runs end, is
that of LoRA, which is met less well."""
QUANTISED: Fractions = (0.95, 1.465)
"""Allocated and reserved memory with quantised base weights: 60 readings of three programs, which keep unpacked weights
for longer or shorter. Our own trainer's are met like its other runs (``benchmarks/results/2026-11-30-h200-cells.md``).
"""
QUANTISED_ALONE: Fractions = (0.95, 1.10)
"""The 25 of them on one GPU with every block recomputed: what a block keeps ends with it, and nothing is gathered."""
WHOLE_DEVICE: Fractions = (0.92, 1.36)
"""Band of readings of the whole device, with caches and whatever else lies on it: 84 readings."""


def memory_band(plan: Plan) -> Fractions:
    """The band on what a plan allocates and reserves, as fractions of the prediction; of columns, columns."""
    recipe = plan.recipe
    if recipe.adapter != "qlora" or is_native_engine(plan):
        return ALLOCATED
    is_alone = (plan.cluster.num_gpus == 1) & (recipe.recompute == "full")
    if recipe.recompute_layers is not None:
        is_alone = is_alone & (recipe.recompute_layers == 0)
    (low, high), (kept_low, kept_high) = QUANTISED_ALONE, QUANTISED
    return either(is_alone, low, kept_low), either(is_alone, high, kept_high)


def reading_band(memory: MemoryPrediction, *, is_whole_device: bool) -> Fractions:
    """The band of a reading: of what the framework allocates or reserves, or of what the whole device shows."""
    return WHOLE_DEVICE if is_whole_device else (memory.low_fraction, memory.high_fraction)
