"""Activation checkpointing: what a block keeps from forward to backward, and what it computes again."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from shardwise.measure.phase_marks import BLOCK
from shardwise.recipe import Recipe, Recompute
from shardwise.train.decoder.blocks import is_sparse, let_backward_write_over

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
DECIDED = frozenset((*ALWAYS_KEPT, *PRODUCTS))


class OnlyDecided(TorchDispatchMode):
    """Shows a mode of selective recomputation the operations that it decides on, and none of what hooks do in between.

    torch counts every operation inside a checkpointed block, and wants to meet it again. FSDP's hooks of a unit inside
    the block, which divided experts are, gather weights in forward and find them gathered in backward, or the reverse.
    """

    def __init__(self, mode: TorchDispatchMode) -> None:
        super().__init__()
        self.mode = mode

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled parts of a block are compiled as they are without the mode."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        if func in DECIDED:
            return self.mode.__torch_dispatch__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))


REMADE: dict[Recompute, frozenset[str]] = {
    "none": frozenset(),
    "selective": frozenset(("up",)),  # the product before it, of the gate, is kept
    "full": frozenset(("gate", "up")),
}
"""Products of a dense feed-forward that backward makes again."""


def recompute_blocks(
    blocks: list[nn.Module], recipe: Recipe, *, num_before: int = 0, is_compiled_together: bool = True
) -> None:
    """Make the first ``recompute_layers`` blocks of a rank (all by default) forget what the recipe says.

    Args:
        blocks: of one chunk, in model order.
        recipe: what to recompute.
        num_before: blocks of this rank's chunks before it.
        is_compiled_together: a compiler sees backward with what is computed again for it, where it compiles at all.
    """
    if recipe.recompute == "none":
        return
    count = len(blocks) if recipe.recompute_layers is None else max(0, recipe.recompute_layers - num_before)
    for block in blocks[:count]:
        is_compiled = recipe.compile and not is_sparse(block)
        if is_compiled and is_compiled_together:
            let_backward_write_over(block, REMADE[recipe.recompute])
        forward = block.forward if recipe.compile else _marked(block.forward)
        block.forward = _checkpointed(forward, recipe, is_compiled=is_compiled)


def _marked(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The same under a name that a profile shows, first in forward and again where it is computed again."""

    def run(*arguments: Any, **named: Any) -> Any:
        with record_function(BLOCK):
            return forward(*arguments, **named)

    return run


def _checkpointed(forward: Callable[..., Any], recipe: Recipe, *, is_compiled: bool) -> Callable[..., Any]:
    draws = recipe.lora_dropout_fraction > 0  # only dropout draws random numbers in a block
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": draws}
    if recipe.recompute == "selective":
        adapter_rank = recipe.lora_rank if recipe.adapter != "none" else None
        contexts = _selective_contexts if is_compiled else _eager_contexts
        options["context_fn"] = partial(contexts, adapter_rank)

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


def _eager_contexts(adapter_rank: int | None) -> Any:
    """The same where torch meets operation by operation; a compiler looks for torch's own modes."""
    return tuple(OnlyDecided(mode) for mode in _selective_contexts(adapter_rank))
