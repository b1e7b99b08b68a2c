"""The communication of an operator: kind, ranks and payload, in the convention of the plan's inventory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.distributed_c10d import get_process_group_ranks

from shardwise.train.torch_private import group_in, group_named

INPUT: Callable[[Any, Any], int] = lambda arguments, _result: _nbytes(arguments)  # noqa: E731
OUTPUT: Callable[[Any, Any], int] = lambda _arguments, result: _nbytes(result)  # noqa: E731
SEND_PEER = 2
"""Position of the receiver, counted in the group, among the arguments of a send."""
FUNCTIONAL = {
    "all_reduce": ("all_reduce", INPUT),
    "all_gather_into_tensor": ("all_gather", OUTPUT),
    "reduce_scatter_tensor": ("reduce_scatter", INPUT),
    "all_to_all_single": ("all_to_all", INPUT),
}
"""Operators of ``_c10d_functional``: the group is their last argument, by name."""
DIRECT = {
    "allreduce_": ("all_reduce", 0),
    "_allgather_base_": ("all_gather", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "alltoall_base_": ("all_to_all", 1),
    "broadcast_": ("broadcast", 0),
    "send": ("send_recv", 0),
}
"""Operators of ``c10d``, and which argument is the payload: the output of a gather, the input of a scatter. A message
is counted where it is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The communication of one operator: kind, ranks and bytes."""

    kind: str
    ranks: tuple[int, ...]
    """Ranks that take part, numbered in the whole job."""
    num_bytes: int


def communication(name: str, arguments: Sequence[Any], result: Any) -> Said | None:
    """The communication of an operator, by the name in its schema; ``None`` for operators that do not communicate."""
    namespace, _, operator = name.partition("::")
    if namespace == "_c10d_functional" and operator in FUNCTIONAL:
        kind, payload = FUNCTIONAL[operator]
        group: ProcessGroup | None = group_named(arguments[-1])
        num_bytes = payload(arguments[0], result)
    elif namespace == "c10d" and operator in DIRECT:
        kind, position = DIRECT[operator]
        group = _group(arguments)
        num_bytes = _nbytes(arguments[position])
    else:
        return None
    ranks = tuple(get_process_group_ranks(group)) if group is not None else (0,)
    if kind == "send_recv":
        ranks = (ranks[group.rank()], ranks[arguments[SEND_PEER]]) if group is not None else ranks
    return Said(kind=kind, ranks=ranks, num_bytes=num_bytes)


def _group(arguments: Sequence[Any]) -> ProcessGroup | None:
    """The process group among an operator's arguments."""
    return next((group for part in arguments if (group := group_in(part)) is not None), None)


def _nbytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(_nbytes(part) for part in value)
