"""Where in the step an operation stands: its phase, its micro-batch, and the block it belongs to."""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from shardwise.ledger import Phase
from shardwise.train.torch_private import current_node, is_in_backward, next_node_number, node_number

BEFORE_BLOCKS, AFTER_BLOCKS = -1, 1 << 20
"""Places of the embedding, and of norm, head and loss, among the blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One place of the step; operations with equal places are neighbours in time."""

    phase: Phase
    micro_batch: int
    block: int
    """The block's number among those of this rank, or ``BEFORE_BLOCKS`` or ``AFTER_BLOCKS``."""
    is_recompute: bool = False


class Whereabouts:
    """Follows the step by hooks on modules, and backward by the order in which autograd made its nodes.

    Nodes are numbered as they are made, so the numbers at the end of every block in forward say in backward which block
    a node belongs to. Accumulations have no number of their own and belong where the node before them does.
    """

    def __init__(
        self,
        roots: Sequence[nn.Module],
        blocks: Sequence[nn.Module],
        *,
        has_head: bool,
        modes: Sequence[TorchFunctionMode] = (),
    ) -> None:
        self.has_head, self.modes = has_head, modes
        self.phase: Phase = "load"
        self.micro_batch, self.block, self.recomputing = 0, BEFORE_BLOCKS, 0
        self.ends: list[int] = []
        self.spans: list[tuple[int, int]] = []
        self.started = [0] * len(roots)
        self.in_backward = (0, AFTER_BLOCKS)
        self.entered = ExitStack()
        parts = {id(part): part for root in roots for part in root.modules()}
        self.handles = [
            *self._watch_roots(roots),
            *self._watch_blocks(blocks),
            *(handle for part in parts.values() for handle in self._watch_part(part)),
        ]

    def begin_step(self) -> None:
        """Forward begins anew."""
        self.phase, self.block = "forward", BEFORE_BLOCKS
        self.ends, self.spans, self.started = [], [], [0] * len(self.started)

    def end_passes(self) -> None:
        """All micro-batches are done; what follows is the optimizer's."""
        self.phase = "optimizer"

    def now(self) -> Place:
        """The place of the operation that runs now."""
        if self.phase in ("load", "optimizer"):
            return Place(phase=self.phase, micro_batch=0, block=BEFORE_BLOCKS)
        if is_in_backward():
            micro_batch, block = self._of_node(current_node())
            return Place(phase="backward", micro_batch=micro_batch, block=block, is_recompute=self.recomputing > 0)
        is_loss = self.has_head and self.block == AFTER_BLOCKS
        return Place(phase="loss" if is_loss else "forward", micro_batch=self.micro_batch, block=self.block)

    def close(self) -> None:
        """Stop watching."""
        for handle in self.handles:
            handle.remove()

    def _of_node(self, node: Any) -> tuple[int, int]:
        number = node_number(node) if node is not None else None
        if number is not None and self.ends and number < 1 << 60:
            index = bisect_right(self.ends, number)
            if index < len(self.spans):
                self.in_backward = self.spans[index]
            else:
                self.in_backward = (self.micro_batch, AFTER_BLOCKS)
        return self.in_backward

    def _note(self, block: int) -> None:
        """Note that the autograd nodes made since the last note belong to ``block``."""
        number = next_node_number()
        if not self.ends or number > self.ends[-1]:
            self.ends.append(number)
            self.spans.append((self.micro_batch, block))

    def _watch_roots(self, roots: Sequence[nn.Module]) -> list[RemovableHandle]:
        def begin(index: int) -> Any:
            def hook(_module: nn.Module, _arguments: Any) -> None:
                self._note(AFTER_BLOCKS)
                self.micro_batch, self.block = self.started[index], BEFORE_BLOCKS
                self.started[index] += 1

            return hook

        return [root.register_forward_pre_hook(begin(index), prepend=True) for index, root in enumerate(roots)]

    def _watch_blocks(self, blocks: Sequence[nn.Module]) -> list[RemovableHandle]:
        handles: list[RemovableHandle] = []
        last = len(blocks) - 1
        for index, block in enumerate(blocks):

            def begin(_module: nn.Module, _arguments: Any, index: int = index) -> None:
                if not is_in_backward():
                    self._note(index - 1 if index else BEFORE_BLOCKS)
                    self.block = index

            def end(_module: nn.Module, _arguments: Any, _output: Any, index: int = index) -> None:
                if not is_in_backward():
                    self._note(index)
                    self.block = AFTER_BLOCKS if index == last else index

            handles += [
                block.register_forward_pre_hook(begin, prepend=True),
                block.register_forward_hook(end),
            ]
        return handles

    def _watch_part(self, part: nn.Module) -> tuple[RemovableHandle, RemovableHandle]:
        """Modules that run forward within backward are recomputed; function modes are off there and entered again."""

        def begin(_module: nn.Module, _arguments: Any) -> None:
            if not is_in_backward():
                return
            self.recomputing += 1
            if self.recomputing == 1:
                for mode in self.modes:
                    self.entered.enter_context(mode)

        def end(_module: nn.Module, _arguments: Any, _output: Any) -> None:
            if not is_in_backward():
                return
            self.recomputing -= 1
            if self.recomputing == 0:
                self.entered.close()

        return part.register_forward_pre_hook(begin, prepend=True), part.register_forward_hook(end, always_call=True)
