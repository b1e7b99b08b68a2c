"""Counts the collectives a rank issues: kind, ranks and payload, in the convention of the plan's inventory.

torch's own ``CommDebugMode`` counts calls only, and fails on gradient accumulation.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.train.counting import communication
from shardwise.train.torch_private import TorchDispatchMode, operator_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """One kind of collective call."""

    kind: str
    group_size: int
    num_bytes: int
    """Bytes of one call: the output of an all-gather, the input of a reduce-scatter."""


class CollectiveCounter(TorchDispatchMode):
    """Counts while it is entered; groups of one rank are no communication."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[Counted] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operator, and count it when it communicates."""
        result = func(*args, **(kwargs or {}))
        said = communication(operator_name(func), args, result)
        if said is not None and len(said.ranks) > 1:
            self.calls[Counted(kind=said.kind, group_size=len(said.ranks), num_bytes=said.num_bytes)] += 1
        return result
