"""Records every operator of a step on fake tensors: what is allocated when, what is communicated, what is computed."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from shardwise.train.counting import communication
from shardwise.train.torch_private import (
    FakeTensor,
    TorchDispatchMode,
    operator_name,
    storage_key,
    unset_fake_temporarily,
)
from shardwise.train.tracing.operation_flop import operator_flop
from shardwise.train.tracing.whereabouts import Place, Whereabouts

ALLOCATION_UNIT_BYTES = 512
"""torch's CUDA allocator rounds every request up to it (``c10/cuda/CUDACachingAllocator.cpp`` ``kMinBlockSize``)."""
DEVICE = torch.ops.prim.device.default
UNIT_END = "profiler::_record_function_exit"
UNIT_MARKS = ("profiler::_record_function_enter_new", "profiler::_record_function_enter", UNIT_END)


@dataclass(slots=True)
class Allocation:
    """One stretch of memory, from the operator that allocated it to the operator before which it was freed."""

    num_bytes: int
    operator: str
    place: Place
    allocated: int
    """Index of the first operator that sees it."""
    freed: int | None = None
    """Index of the first operator that does not; ``None`` while it lives."""
    mark: str | None = None
    """What the memory is held for, where that is known: ``parameters``, ``gradients`` and so on."""
    num_columns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective call."""

    kind: str
    ranks: tuple[int, ...]
    num_bytes: int
    place: Place
    unit: str
    """The unit of FSDP2 that asked for it, by its module's name; empty for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One operator that multiplies matrices."""

    operator: str
    flop: float
    place: Place


@dataclass(slots=True)
class Log:
    """The operators, collectives and tensors of one step."""

    places: list[Place] = field(default_factory=list)
    """The place of every operator that was run."""
    allocations: list[Allocation] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)


class Recorder(TorchDispatchMode):
    """While it is entered, fake tensors are accounted for; real ones compute as ever.

    Real tensors are the few with values that decide something, such as a mesh of ranks.
    """

    def __init__(self) -> None:
        super().__init__()
        self.whereabouts: Whereabouts | None = None
        self.log = Log()
        self.host: set[int] = set()
        self.answers_votes = False
        self._live: dict[int, tuple[Any, Allocation]] = {}
        self._elastic: dict[int, Any] = {}
        self._units: list[str] = []
        self._buffers: set[int] = set()

    def begin(self) -> None:
        """Start the log anew: what lives is held from before the step."""
        held = [allocation for _, allocation in self._live.values()]
        for allocation in held:
            allocation.allocated = 0
        self.log = Log(allocations=held)
        for key, (reference, allocation) in self._live.items():
            storage = reference()
            if storage is not None and storage.nbytes() != allocation.num_bytes:
                self._elastic[key] = reference
        self._poll()

    def mark(self, tensors: Iterator[Tensor] | Sequence[Tensor], name: str) -> None:
        """Say what tensors are for; the first to say it is right."""
        for tensor in tensors:
            found = self._live.get(storage_key(tensor))
            if found is not None and found[1].mark in (None, "reduced"):
                found[1].mark = name

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operator and account for what it made."""
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # its operators on local parts come here next
        keywords = dict(kwargs or {})
        if func is DEVICE:
            return _device_of(args[0])
        name = operator_name(func)
        if name in UNIT_MARKS:
            self._see_unit(name, args)
            return func(*args, **keywords)
        tensors = list(_tensors((args, keywords)))
        if _has_values(name, tensors, keywords):
            with unset_fake_temporarily():
                return func(*args, **keywords)
        if name == "aten::_local_scalar_dense" and self._is_answered(tensors[0]):
            return 1
        self._poll()
        result = func(*args, **keywords)
        self._account(name, args, keywords, result)
        return result

    def _see_unit(self, name: str, args: Sequence[Any]) -> None:
        """A unit of FSDP2 begins or ends."""
        if name != UNIT_END:
            self._units.append(str(args[0]))
        elif self._units:
            self._units.pop()

    def _is_answered(self, asked: Tensor) -> bool:
        """Values that only scale: what stages vote for when they start, and what an optimizer looks at."""
        is_vote = self.answers_votes and asked.dtype == torch.int32
        return is_vote or (self.whereabouts is not None and self.whereabouts.phase == "optimizer")

    def _account(self, name: str, args: Sequence[Any], keywords: dict[str, Any], result: Any) -> None:
        place = self.whereabouts.now() if self.whereabouts else LOADING
        index = len(self.log.places)
        self.log.places.append(place)
        for tensor in _tensors(result):
            self._see(tensor, name, place, index)
        mark = MARKS.get(name)
        if mark is not None:
            written = result if mark.position is None else args[mark.position] if len(args) > mark.position else ()
            self.mark(list(_tensors(keywords.get("out", written))), mark.name)
        flop = operator_flop(name, args, keywords)
        if flop:
            self.log.work.append(Work(operator=name, flop=flop, place=place))
        said = communication(name, args, result)
        if said is not None and len(said.ranks) > 1:
            unit = next((text for text in reversed(self._units) if "FSDP::" in text), "")
            self.log.calls.append(
                Call(kind=said.kind, ranks=said.ranks, num_bytes=said.num_bytes, place=place, unit=unit)
            )
        self._poll()

    def _see(self, tensor: Tensor, name: str, place: Place, index: int) -> None:
        if not isinstance(tensor, FakeTensor) or tensor.fake_device.type == "meta":
            return
        storage = tensor.untyped_storage()
        key = storage_key(tensor)
        if key in self._live or key in self.host:
            return
        num_columns = int(tensor.shape[-1]) if tensor.dim() > 1 else 0
        allocation = Allocation(storage.nbytes(), name, place, index, num_columns=num_columns)
        self.log.allocations.append(allocation)
        self._live[key] = (weakref.ref(storage, partial(self._freed, key)), allocation)

    def _freed(self, key: int, _reference: Any) -> None:
        _, allocation = self._live.pop(key)
        allocation.freed = len(self.log.places)
        self._elastic.pop(key, None)

    def _poll(self) -> None:
        """FSDP2 frees and refills whole parameters by resizing their storage, which no operator says."""
        for key, reference in self._elastic.items():
            storage = reference()
            if storage is None:
                continue
            _, allocation = self._live[key]
            if storage.nbytes() == allocation.num_bytes:
                continue
            index = len(self.log.places)
            allocation.freed = index
            place = self.log.places[-1] if self.log.places else allocation.place
            grown = Allocation(
                storage.nbytes(),
                allocation.operator,
                place,
                index,
                mark="gathered_parameters",
                num_columns=allocation.num_columns,
            )
            self._live[key] = (reference, grown)
            self.log.allocations.append(grown)


LOADING = Place(phase="load", micro_batch=0, block=-1)


@dataclass(frozen=True, slots=True)
class Mark:
    """The memory component of the tensors that an operator makes, or of one that it writes into."""

    name: str
    position: int | None
    """Position of the argument that is written; ``None`` for the result."""


MARKS = {
    "fsdp::all_gather_copy_in": Mark("gathered_parameters", None),
    "fsdp::split_with_sizes_copy": Mark("gathered_parameters", 3),
    "fsdp::chunk_cat": Mark("communication_buffers", 3),
    "c10d::_reduce_scatter_base_": Mark("reduced", 0),
    "c10d::recv_": Mark("communication_buffers", 0),
}


def _device_of(tensor: Tensor) -> Any:
    """The device of a tensor, by the shortest way: ``prim::device`` is asked twice for every operator."""
    if isinstance(tensor, FakeTensor) and not tensor.fake_mode.in_kernel_invocation:
        return tensor.fake_device
    return DEVICE(tensor)


def _has_values(name: str, tensors: Sequence[Tensor], keywords: dict[str, Any]) -> bool:
    """Whether an operator works on real tensors alone; DDP's reducer writes the order of its buckets into one."""
    is_bucket_order = name == "aten::empty" and keywords.get("dtype") is torch.int32
    return is_bucket_order or (bool(tensors) and not any(isinstance(tensor, FakeTensor) for tensor in tensors))


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in nested arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
