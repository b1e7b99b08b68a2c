"""What our runtime's Python does around the kernels of a block, counted in kernels that the host issues.

FSDP2's hooks, DTensor and checkpointing keep the host busy and the device not. On H100 an FSDP2 unit over one rank adds
2.89 ms to the passes of a block (``benchmarks/results/2026-11-28-h100-dispatch.csv``), as long as 82 kernels take. What
the others add in proportion was timed on tiny blocks without a GPU, where nothing else takes time, and to which pass
(``benchmarks/host_costs.py``, ``benchmarks/results/host_costs-2026-11-28.md``; medians of three runs, which agree
within a quarter).
"""

from shardwise.layout import Layout
from shardwise.recipe import Recipe, Recompute

UNIT_CALLS = (54, 67)
"""One FSDP2 unit, forward and backward."""
ONE_RANK_UNIT_CALLS = (32, 50)
"""The same over one rank: nothing to gather, but weights to cast and gradients to reduce over replicas."""
TENSOR_PARALLEL_CALLS = (20, 56)
"""Parts of weights as DTensors, and the collectives inside a block."""
CHECKPOINT_CALLS: dict[Recompute, int] = {"none": 0, "full": 63, "selective": 193}
"""Checkpointing in both passes, without the kernels that run again: saved tensors are packed and unpacked, and under
selective recomputation a Python mode looks at every operator (torch ``utils/checkpoint.py``). Six blocks on H100 say 21
to 53 for full."""
DIVIDED_CHECKPOINT_CALLS: dict[Recompute, int] = {"none": 0, "full": 25, "selective": 40}
"""What tensor parallelism adds to it."""


def block_calls(layout: Layout, *, is_gathered: bool, has_units: bool) -> tuple[int, int]:
    """Forward and backward of one block, beyond the calls of a gathered unit.

    >>> block_calls(Layout(tp=2), is_gathered=False, has_units=True)
    (52, 106)
    """
    forward = backward = 0
    if has_units and not is_gathered:
        forward, backward = ONE_RANK_UNIT_CALLS
    if layout.tp > 1:
        forward, backward = forward + TENSOR_PARALLEL_CALLS[0], backward + TENSOR_PARALLEL_CALLS[1]
    return forward, backward


def recompute_calls(recipe: Recipe, layout: Layout) -> int:
    """One block that is recomputed; compiled, it is recomputed by its own kernels."""
    if recipe.compile:
        return 0
    divided = DIVIDED_CHECKPOINT_CALLS[recipe.recompute] if layout.tp > 1 else 0
    return CHECKPOINT_CALLS[recipe.recompute] + divided
