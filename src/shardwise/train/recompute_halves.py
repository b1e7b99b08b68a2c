"""Activation checkpointing for schedules that split the backward pass: its halves read the graph of a block in turn.

torch's own checkpointing recomputes a block for every backward call. torch's pipelines call backward once for the
gradients of inputs, and then once for each group of weights: nine calls for a block of Llama, each of which leaves what
it did not read until the graph goes. What selective recomputation kept, torch gives out once. Here a block is
recomputed once in either half, and what one block leaves goes when another is recomputed.

Source: torch 2.13 ``utils/checkpoint.py`` (``_checkpoint_hook``, ``_CachedTorchDispatchMode``),
    ``distributed/pipelining/_backward.py`` (``stage_backward_weight``).
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.random import fork_rng
from torch.utils.checkpoint import get_device_states, set_device_states

from shardwise.train.torch_private import TorchDispatchMode, tree_map_only

Keeps = Callable[[Any, Any], bool | None]
"""Whether the output of an operation with these arguments is kept; nothing for those that never are."""


def run_and_forget(
    forward: Callable[..., Any],
    *arguments: Any,
    make_keeps: Callable[[], Keeps] | None,
    draws: bool,
    **named: Any,
) -> Any:
    """The result of ``forward``, whose saved tensors are dropped and recomputed in either half of backward.

    Args:
        forward: of a block.
        arguments: tensors among them may be on the host until backward, if hooks around say so.
        make_keeps: which operations' outputs are kept nevertheless, asked in order; ``None`` keeps none.
        draws: whether the block draws random numbers, which have to be the same again.
        named: further arguments, kept as they are.
    """
    if not torch.is_grad_enabled():
        return forward(*arguments, **named)
    region = _Region(forward, arguments, named, make_keeps=make_keeps, draws=draws)
    with saved_tensors_hooks(region.pack, region.unpack), region.keeping():
        return forward(*arguments, **named)


class _Slot:
    """Stands in a graph for a tensor that was not saved."""

    def __init__(self, number: int) -> None:
        self.number = number


class _MadeEnoughError(Exception):
    """Ends a forward whose last saved tensor is there again."""


class _Inputs(torch.autograd.Function):
    """Saves inputs of a block as any operation does, so that hooks around the block may move them."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *inputs: Tensor) -> Tensor:
        ctx.save_for_backward(*inputs)
        return anchor.new_empty(0)

    @staticmethod
    def backward(_ctx: Any, *_gradients: Any) -> Any:
        """Never asked: nothing reads the output."""


class _Region:
    """One forward of a block: how to run it again, and what it kept."""

    last_made: ClassVar[Callable[[], "_Region | None"]] = staticmethod(lambda: None)
    """The region that was recomputed last, as long as its graph is there."""

    def __init__(
        self,
        forward: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        *,
        make_keeps: Callable[[], Keeps] | None,
        draws: bool,
    ) -> None:
        self.forward, self.named, self.make_keeps = forward, named, make_keeps
        self.others = tuple(None if isinstance(given, Tensor) else given for given in arguments)
        self.places = [place for place, given in enumerate(arguments) if isinstance(given, Tensor)]
        anchor = torch.empty(0, requires_grad=True)
        # The output, not its node: torch 2.11 frees what a node saved when nothing holds its output.
        self.inputs: Any = _Inputs.apply(anchor, *(arguments[place] for place in self.places))
        self.draws = (torch.get_rng_state(), *get_device_states(*arguments)) if draws else None
        self.slots: list[weakref.ref[_Slot]] = []
        self.made: dict[int, Tensor] = {}
        self.kept: dict[int, Any] = {}

    def keeping(self) -> Any:
        """A context in which outputs are kept."""
        return _Keeping(self.make_keeps(), self.kept) if self.make_keeps else nullcontext()

    def pack(self, _tensor: Tensor) -> _Slot:
        """Forget a tensor."""
        slot = _Slot(len(self.slots))
        self.slots.append(weakref.ref(slot))
        return slot

    def unpack(self, slot: _Slot) -> Tensor:
        """Recompute a tensor, unless this half recomputed it already together with others."""
        if slot.number not in self.made:
            self._make_again()
        return self.made.pop(slot.number)

    def _make_again(self) -> None:
        other = _Region.last_made()
        if other is not None:
            other.made.clear()
        _Region.last_made = weakref.ref(self)
        numbers = count()

        def pack(tensor: Tensor) -> Tensor:
            number, tensor = next(numbers), tensor.detach()
            if self.slots[number]() is not None:
                self.made[number] = tensor
            if number == len(self.slots) - 1:
                raise _MadeEnoughError
            return tensor

        recalling = _Recalling(self.make_keeps(), self.kept) if self.make_keeps else nullcontext()
        with torch.enable_grad(), saved_tensors_hooks(pack, lambda tensor: tensor), recalling, self._same_draws():
            try:
                self.forward(*self._arguments(), **self.named)
            except _MadeEnoughError:
                return
        saved, again = len(self.slots), next(numbers)
        assert saved == again, f"a block saved {saved} tensors, and {again} when it was recomputed"

    def _arguments(self) -> list[Any]:
        """Cut off from the graph before the block."""
        arguments = list(self.others)
        for place, tensor in zip(self.places, self.inputs.grad_fn.saved_tensors, strict=True):
            arguments[place] = tensor.detach().requires_grad_(tensor.requires_grad)
        return arguments

    @contextmanager
    def _same_draws(self) -> Iterator[None]:
        if self.draws is None:
            yield
            return
        state, devices, device_states = self.draws
        with fork_rng(devices=devices):
            torch.set_rng_state(state)
            set_device_states(devices, device_states)
            yield


class _Counted(TorchDispatchMode):
    """Numbers the operations that may be kept, which is the same in forward and again."""

    def __init__(self, keeps: Keeps, kept: dict[int, Any]) -> None:
        super().__init__()
        self.keeps, self.kept, self.numbers = keeps, kept, count()


class _Keeping(_Counted):
    """Keeps outputs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation."""
        output = func(*args, **(kwargs or {}))
        keeps = self.keeps(func, args)
        if keeps is not None:
            number = next(self.numbers)
            if keeps:
                self.kept[number] = _aliases(output)
        return output


class _Recalling(_Counted):
    """Gives out what was kept."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, unless its output is there."""
        if self.keeps(func, args) is not None:
            number = next(self.numbers)
            if number in self.kept:
                return _aliases(self.kept[number])
        return func(*args, **(kwargs or {}))


def _aliases(output: Any) -> Any:
    """New tensors over the same memory, which a graph may then call its own."""
    return tree_map_only(Tensor, Tensor.detach, output)
