"""A module that somebody else wrote, trained by the same loop: its blocks are its longest list of modules."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from shardwise.errors import ModelError
from shardwise.train.loss import IGNORED_LABEL

INITIALIZER_RATIO = 0.02


class ForeignModule(nn.Module):
    """Wraps a module that takes token ids and gives logits or a loss, so that it returns a summed loss."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.initializer_ratio = INITIALIZER_RATIO
        self.lm_head: nn.Module | None = None

    def blocks(self) -> Iterator[nn.Module]:
        """The members of the longest list of modules; none where there is no list."""
        lists = [module for module in self.modules() if isinstance(module, nn.ModuleList)]
        yield from max(lists, key=len, default=())

    def named_blocks(self) -> Iterator[tuple[str, nn.Module]]:
        """The blocks with their names."""
        blocks = {id(block) for block in self.blocks()}
        yield from ((name, module) for name, module in self.named_modules() if id(module) in blocks)

    def forward(self, ids_BS: Tensor, labels_BS: Tensor) -> Tensor:
        """The summed loss."""
        return _summed_loss(self.inner(ids_BS), labels_BS)


def _summed_loss(output: Any, labels_BS: Tensor) -> Tensor:
    """The summed loss of a module's output: a loss, logits, or a record or tuple that holds one of these first.

    Raises:
        ModelError: it is nothing of the kind.
    """
    named = next(
        (part for part in (getattr(output, "loss", None), getattr(output, "logits", None)) if part is not None), output
    )
    first = named[0] if isinstance(named, tuple) and named else named
    if not isinstance(first, Tensor):
        raise ModelError(
            f"the module gives {type(output).__name__}, which is neither logits nor a loss",
            code="trace-module",
            fix="return the logits, the loss, or a record with one of them",
        )
    if first.dim() == 0:
        return first
    return cross_entropy(first.flatten(0, -2).float(), labels_BS.flatten(), reduction="sum", ignore_index=IGNORED_LABEL)
