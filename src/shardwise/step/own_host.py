"""Host work of Python around the kernels of a block on FSDP2, in our trainer and others, counted in kernels issued.

FSDP2's hooks, DTensor and checkpointing keep the host busy and the device not. On H100 an FSDP2 unit over one rank adds
2.89 ms to the passes of a block (``benchmarks/results/2026-11-28-h100-dispatch.csv``), as long as 82 kernels take; ours
casts all parameters of such a unit at once, which takes 65 (:data:`ONE_RANK_UNIT_CALLS`). What the others add in
proportion was timed on tiny blocks without a GPU, where nothing else takes time, and to which pass
(``benchmarks/host_costs.py``, ``benchmarks/results/host_costs-2026-11-28.md``; medians of three runs, which agree
within a quarter).
"""

from shardwise.layout import Layout
from shardwise.recipe import Recipe, Recompute

UNIT_CALLS = (54, 67)
"""Host work of one FSDP2 unit, forward and backward."""
ONE_RANK_UNIT_CALLS = (18, 47)
"""Host work of one FSDP2 unit over one rank: nothing to gather, but weights to cast and gradients to reduce.

32 and 50 for units cast one parameter after the other, times what profiles of gpt2-xl say of hooks beside a product:
36.7 and 31.8 products long cast one by one, 20.8 and 29.7 at once
(``benchmarks/results/2026-11-30-h200-units-at-once.md``)."""
TENSOR_PARALLEL_CALLS = (20, 56)
"""Host work of tensor parallelism in a block: parts of weights as DTensors, and the collectives inside the block."""
DTENSOR_CALLS = (190, 225)
"""Host work of a block in eager mode whose every operation is dispatched on DTensors: blocks on 2 and 4 ranks took 20
ms of host time and 7.5 ms to be recomputed (``2026-11-27-h100-memory.jsonl``, tp-sp and tp-sp-full)."""
CHECKPOINT_CALLS: dict[Recompute, tuple[int, int]] = {"none": (0, 0), "full": (0, 63), "selective": (105, 88)}
"""Checkpointing in forward and where blocks are computed again, without the kernels that run again: saved tensors are
packed and unpacked, and under selective recomputation a Python mode looks at every operator (torch
``utils/checkpoint.py``). Six blocks on H100 say 21 to 53 for full, whose few forward calls are counted in backward."""
DIVIDED_CHECKPOINT_CALLS: dict[Recompute, tuple[int, int]] = {"none": (0, 0), "full": (0, 25), "selective": (12, 28)}
"""Host work that tensor parallelism adds to checkpointing."""

ADAPTER_CALLS = (3, 1)
"""Our eager runtime beside one adapted matrix, forward and backward, beyond the kernels counted in
``eager_operations.py``: modules and the hook (``benchmarks/results/host_costs-2026-11-29.md``, as the next three)."""
PACKED_CALLS = (2, 6)
"""Host work beside one 4-bit matrix: a function of our own in the graph of gradients."""
ADAPTER_CHECKPOINT_CALLS: dict[Recompute, tuple[int, int]] = {"none": (0, 0), "full": (0, 7), "selective": (11, 16)}
"""Host work that checkpointing adds for one adapted matrix, in forward and again: more operators to look at."""
PACKED_CHECKPOINT_CALLS: dict[Recompute, tuple[int, int]] = {"none": (0, 0), "full": (0, 0), "selective": (22, 15)}
"""Host work that checkpointing adds for one 4-bit matrix."""


def block_calls(layout: Layout, *, is_gathered: bool, has_units: bool) -> tuple[int, int]:
    """Host work of one block, forward and backward, beyond the calls of a gathered unit.

    >>> block_calls(Layout(tp=2), is_gathered=False, has_units=True)
    (38, 103)
    """
    forward = backward = 0
    if has_units and not is_gathered:
        forward, backward = ONE_RANK_UNIT_CALLS
    if layout.tp > 1:
        forward, backward = forward + TENSOR_PARALLEL_CALLS[0], backward + TENSOR_PARALLEL_CALLS[1]
    return forward, backward


def tensor_calls(*, computes_on_parts: bool) -> tuple[int, int]:
    """Host work of tensor parallelism in one block, forward and backward."""
    return TENSOR_PARALLEL_CALLS if computes_on_parts else DTENSOR_CALLS


def adapter_calls(*, adapted: int, packed: int) -> tuple[int, int]:
    """Host work of the adapted and 4-bit matrices of one block, forward and backward.

    >>> adapter_calls(adapted=7, packed=7)
    (35, 49)
    """
    (forward, backward), (more_forward, more_backward) = ADAPTER_CALLS, PACKED_CALLS
    return adapted * forward + packed * more_forward, adapted * backward + packed * more_backward


def recompute_calls(
    recipe: Recipe, layout: Layout, *, computes_on_parts: bool = True, adapted: int = 0, packed: int = 0
) -> tuple[int, int]:
    """Host work of recomputing one block, in forward and then; compiled, it is recomputed by its own kernels.

    ``adapted`` and ``packed`` are its matrices with adapters and in 4 bits, where our runtime's code runs them.

    >>> recompute_calls(Recipe(seq_len=1, recompute="selective", compile=False), Layout(tp=2))
    (117, 116)
    """
    if recipe.compile or recipe.recompute == "none":
        return 0, 0
    forward, again = CHECKPOINT_CALLS[recipe.recompute]
    for number, calls in ((adapted, ADAPTER_CHECKPOINT_CALLS), (packed, PACKED_CHECKPOINT_CALLS)):
        more = calls[recipe.recompute]
        forward, again = forward + number * more[0], again + number * more[1]
    if layout.tp > 1 and computes_on_parts:
        more = DIVIDED_CHECKPOINT_CALLS[recipe.recompute]
        forward, again = forward + more[0], again + more[1]
    elif layout.tp > 1:
        again += DTENSOR_CALLS[0]
    return forward, again
