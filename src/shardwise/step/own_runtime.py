"""What our own trainer does with states and units: facts of ``shardwise/train``, which reads some of them from here."""

from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe

SUMS_BYTES = 32
"""Loss, tokens, squared gradient norm and requests to stop: four fp64 numbers in one sum over all ranks."""


SPLIT_BACKWARD = ("zb-h1", "zbv", "dualpipev")
"""Schedules that run the backward pass for inputs and for weights apart."""


def is_own_runtime(plan: Plan) -> bool:
    """Whether our trainer runs the plan; it trains no adapters, whose predictions are those of a plain FSDP2 loop."""
    return plan.engine == "native" and plan.recipe.adapter == "none"


def is_replicated(layout: Layout) -> bool:
    """Whether every data-parallel rank keeps whole states."""
    return layout.zero_stage == 0 or layout.state_shard_size == 1


def uses_ddp(*, layout: Layout, recipe: Recipe) -> bool:
    """Whether torch's DDP serves: whole states, nothing cast and no part of a matrix.

    Otherwise whole states are units of FSDP2 over an axis of one rank, cast and reduced unit by unit.
    """
    is_plain = layout.tp == 1 and layout.ep == 1 and recipe.precision in ("fp32", "bf16")
    return is_replicated(layout) and is_plain and recipe.offload == "none"


def frees_after_forward(layout: Layout) -> bool:
    """Whether blocks and the token table are freed after forward and gathered again; the last block stays."""
    return not is_replicated(layout) and layout.zero_stage == 3 and layout.pp == 1 and layout.reshard_after_forward


def gathers_every_micro_batch(layout: Layout) -> bool:
    """Whether whole parameters are freed when a micro-batch has gone backward, not when the step is done."""
    return not is_replicated(layout) and layout.zero_stage == 3 and layout.pp == 1


def reduces_every_micro_batch(layout: Layout) -> bool:
    """Whether gradients are reduced and scattered in every micro-batch, not once a step."""
    keeps_whole = is_replicated(layout) or layout.zero_stage == 1 or layout.pp > 1
    return not keeps_whole and not layout.defer_grad_reduce
