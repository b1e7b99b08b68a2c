"""Activation checkpointing: what a block keeps from forward to backward, and what it computes again."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.profiler import record_function
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from shardwise.measure.phase_marks import BLOCK
from shardwise.recipe import Recipe, Recompute
from shardwise.train.decoder.blocks import Block, is_sparse, let_backward_write_over
from shardwise.train.recompute_halves import Keeps, run_and_forget
from shardwise.train.torch_private import (
    TorchDispatchMode,
    collectives,
    cudnn_attention,
    efficient_attention,
    flash_attention,
    flash_attention_for_cpu,
    scaled_mm_operator,
)

ALWAYS_KEPT = (
    flash_attention.default,
    efficient_attention.default,
    cudnn_attention.default,
    flash_attention_for_cpu.default,
    collectives.reduce_scatter_tensor.default,
    collectives.all_to_all_single.default,
)
"""Costly to repeat: attention, and what has to be communicated."""
ADDED = torch.ops.aten.addmm.default
"""A product with a bias, whose matrices come after the bias."""
PRODUCTS = (torch.ops.aten.mm.default, ADDED, torch.ops.aten.linear.default, scaled_mm_operator.default)
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
"""Products of a dense feed-forward that backward recomputes. This is about memory alone: as they are recomputed for
backward alone, it may write gradients over them."""


def recompute_blocks(
    blocks: list[nn.Module],
    recipe: Recipe,
    *,
    num_before: int = 0,
    splits_backward: bool = False,
    is_compiled_together: bool = True,
    compiles_experts: bool = False,
) -> None:
    """Make the first ``recompute_layers`` blocks of a rank (all by default) forget what the recipe says.

    Args:
        blocks: of one chunk, in model order.
        recipe: what to recompute.
        num_before: blocks of this rank's chunks before it.
        splits_backward: whether a schedule computes gradients of inputs and of weights apart.
        is_compiled_together: False where blocks are compiled before they are wrapped, so that the compiled forward
            itself is run again (``build.recomputes_compiled_code``).
        compiles_experts: it sees the whole of blocks with experts, too.
    """
    if recipe.recompute == "none":
        return
    count = len(blocks) if recipe.recompute_layers is None else max(0, recipe.recompute_layers - num_before)
    for block in blocks[:count]:
        is_compiled = recipe.compile and is_compiled_together and (compiles_experts or not is_sparse(block))
        if is_compiled:
            let_backward_write_over(block, REMADE[recipe.recompute])
        forward = block.forward if recipe.compile else _marked(block.forward)
        draws = draws_random_numbers(block, recipe)
        if splits_backward:
            block.forward = _forgotten(forward, recipe, draws=draws)
        else:
            block.forward = _checkpointed(forward, recipe, is_compiled=is_compiled, draws=draws)


def draws_random_numbers(block: nn.Module, recipe: Recipe) -> bool:
    """Whether a forward pass of the block may draw random numbers, which recomputation has to repeat.

    Our blocks draw for the dropout of adapters alone. Of blocks that others wrote nothing is known: their dropout has
    many names, and routers add noise.
    """
    return recipe.lora_dropout_fraction > 0 or not isinstance(block, Block)


def _marked(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward under a name that a profile shows, first in forward and again where it is recomputed."""

    def run(*arguments: Any, **named: Any) -> Any:
        with record_function(BLOCK):
            return forward(*arguments, **named)

    return run


def _checkpointed(forward: Callable[..., Any], recipe: Recipe, *, is_compiled: bool, draws: bool) -> Callable[..., Any]:
    """The forward, recomputed by torch, or by the compiler that sees forward and backward together.

    Full and eager, torch recomputes everything and needs no context; full and compiled, a selective policy keeps
    nothing; selective, :class:`_Choice` says what is kept.

    A compiler is told of every operation whether it is kept. By itself torch 2.11 marks those that it finds in the
    block, and not those inside the functions of ours that have a backward of their own: 4-bit and 8-bit products, which
    the compiler kept then.
    """
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": draws}
    if is_compiled:
        options["context_fn"] = partial(_contexts, _keeps(recipe))
    elif recipe.recompute == "selective":
        options["context_fn"] = partial(_eager_contexts, _keeps(recipe))

    def run(*arguments: Any, **named: Any) -> Any:
        return checkpoint(forward, *arguments, **options, **named)

    return run


def _forgotten(forward: Callable[..., Any], recipe: Recipe, *, draws: bool) -> Callable[..., Any]:
    """The forward, recomputed for schedules whose backward comes in two halves, which torch runs uncompiled alone."""
    make_keeps = _keeps(recipe) if recipe.recompute == "selective" else None

    def run(*arguments: Any, **named: Any) -> Any:
        return run_and_forget(forward, *arguments, make_keeps=make_keeps, draws=draws, **named)

    return run


def _keeps(recipe: Recipe) -> Callable[[], Keeps]:
    """A factory of choices, each for one pass through a block: which operations' outputs are kept."""
    if recipe.recompute == "full":
        return lambda: _keep_nothing
    return partial(_Choice, recipe.lora_rank if recipe.adapter != "none" else None)


def _keep_nothing(_operation: Any, _given: Any) -> bool:
    return False


class _Choice:
    """Which operations of one pass through a block are kept: what is costly to repeat, and every second product.

    ``step/saved_activations.py`` (``kept_by_operation_policy``) says the same for predictions.
    """

    def __init__(self, adapter_rank: int | None) -> None:
        self.adapter_rank = adapter_rank
        self.num_products = 0

    def __call__(self, operation: Any, given: Any) -> bool | None:
        """Whether the output is kept; ``None`` for an operation that nothing is decided about."""
        if operation in PRODUCTS and self.adapter_rank not in given[1 + (operation is ADDED)].shape:
            self.num_products += 1
            return self.num_products % 2 == 1
        return operation in ALWAYS_KEPT if operation in DECIDED else None


def _contexts(make_keeps: Callable[[], Keeps]) -> Any:
    """torch's own modes, which a compiler looks for."""
    choices: defaultdict[bool, Keeps] = defaultdict(make_keeps)

    def policy(context: Any, operation: Any, *given: Any, **_options: Any) -> CheckpointPolicy:
        is_kept = choices[context.is_recompute](operation, given)
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _eager_contexts(make_keeps: Callable[[], Keeps]) -> Any:
    """torch's own modes where torch runs operation by operation."""
    return tuple(OnlyDecided(mode) for mode in _contexts(make_keeps))
