"""Activation checkpointing: what a block keeps from forward to backward, and what it computes again."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from shardwise.measure.phase_marks import BLOCK
from shardwise.recipe import Recipe

ops = torch.ops
ALWAYS_KEPT = (
    ops.aten._scaled_dot_product_flash_attention.default,
    ops.aten._scaled_dot_product_efficient_attention.default,
    ops.aten._scaled_dot_product_cudnn_attention.default,
    ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    ops._c10d_functional.reduce_scatter_tensor.default,
    ops._c10d_functional.all_to_all_single.default,
)
"""Costly to repeat: attention, and what has to be communicated."""
PRODUCTS = (ops.aten.mm.default, ops.aten.linear.default, ops.aten._scaled_mm.default)
"""Every second one is kept, as torchtitan's selective recomputation per operation does; those with a factor of an
adapter are cheap to repeat and not counted."""


def recompute_blocks(blocks: list[nn.Module], recipe: Recipe, *, num_before: int = 0) -> None:
    """Make the first ``recompute_layers`` blocks of a rank (all by default) forget what the recipe says.

    Args:
        blocks: of one chunk, in model order.
        recipe: what to recompute.
        num_before: blocks of this rank's chunks before it.
    """
    if recipe.recompute == "none":
        return
    count = len(blocks) if recipe.recompute_layers is None else max(0, recipe.recompute_layers - num_before)
    for block in blocks[:count]:
        forward = block.forward if recipe.compile else _marked(block.forward)
        block.forward = _checkpointed(forward, recipe)


def _marked(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same under a name that a profile shows, first in forward and again where it is computed again."""

    def run(*arguments: Any, **named: Any) -> Any:
        with record_function(BLOCK):
            return forward(*arguments, **named)

    return run


def _checkpointed(forward: Callable[..., Any], recipe: Recipe) -> Callable[..., Any]:
    draws = recipe.lora_dropout_fraction > 0  # only dropout draws random numbers in a block
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": draws}
    if recipe.recompute == "selective":
        options["context_fn"] = partial(_selective_contexts, recipe.lora_rank if recipe.adapter != "none" else None)

    def run(*arguments: Any, **named: Any) -> Any:
        return checkpoint(forward, *arguments, **options, **named)

    return run


def _selective_contexts(adapter_rank: int | None) -> Any:
    seen: Counter[str] = Counter()

    def policy(context: Any, operation: Any, *given: Any, **_options: Any) -> CheckpointPolicy:
        if operation in ALWAYS_KEPT:
            return CheckpointPolicy.MUST_SAVE
        if operation in PRODUCTS and adapter_rank not in given[1].shape:
            phase = "recompute" if context.is_recompute else "forward"
            seen[phase] += 1
            return CheckpointPolicy.MUST_SAVE if seen[phase] % 2 else CheckpointPolicy.PREFER_RECOMPUTE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
