"""Routing decided without data: every expert gets equally many token copies.

How many rows go where depends on the tokens, and fake tensors have none. The three places of the runtime that ask are
answered with even routing, which is also what the inventory counts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from shardwise.train.torch_private import FakeTensor, unset_fake_temporarily


class EvenRouting(TorchFunctionMode):
    """While it is entered, counts of routed rows are equal parts of all rows."""

    def __init__(self) -> None:
        super().__init__()
        self.num_rows = 0
        self.answers: dict[Any, Callable[..., Any]] = {
            torch.searchsorted: self._ends,
            Tensor.unbind: self._elements,
            Tensor.repeat_interleave: self._repeated,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Answer for even routing, or call the function."""
        return self.answers.get(func, func)(*args, **(kwargs or {}))

    def _ends(self, sorted_rows: Tensor, experts: Tensor, *, right: bool) -> Tensor:
        self.num_rows = sorted_rows.numel()
        return torch.searchsorted(sorted_rows, experts, right=right)

    def _elements(self, counts: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        """Elements of counts, whose values are asked for: equal parts of all rows; the first take what is left over."""
        if not isinstance(counts, FakeTensor) or counts.dtype != torch.int64 or self.num_rows == 0:
            return counts.unbind(dim)
        each, left = divmod(self.num_rows, counts.numel())
        with unset_fake_temporarily():
            return tuple(torch.tensor(each + (index < left)) for index in range(counts.numel()))

    def _repeated(self, values: Tensor, repeats: Any, **options: Any) -> Tensor:
        if isinstance(repeats, Tensor):
            options["output_size"] = self.num_rows
        return values.repeat_interleave(repeats, **options)
