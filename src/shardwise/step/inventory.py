"""Records of the inventory: moments, tensors alive between them, operations and collectives."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from shardwise.cluster import Dtype
from shardwise.columns import most, settled
from shardwise.ledger import MemoryComponent, Phase
from shardwise.units import Bytes, Flop

OperationKind = Literal["matmul", "grouped_matmul", "attention", "delta_rule", "memory", "optimizer"]
OperationPhase = Literal["forward", "backward", "recompute", "optimizer"]
CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast"]
Axis = Literal["dp_replicate", "dp_shard", "tp", "cp", "pp", "ep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A point of the step at which memory is looked at."""

    phase: Phase
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Bytes of one component on one rank, allocated from moment ``first_use`` through ``last_use``, both included."""

    name: str
    component: MemoryComponent
    num_bytes: Bytes
    first_use: int
    last_use: int
    pool: str = ""
    """Name of the tensors that reuse its freed bytes, where not all of its component do: those of one CUDA stream."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no bytes; of a column of plans, whether it has none in any of them."""
        return isinstance(self.num_bytes, int) and self.num_bytes <= 0


def present(condition: bool, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The tensors where a condition holds; of a column of plans those without have none of their bytes."""
    condition = settled(condition)
    if condition is True:
        yield from tensors
    elif condition is not False:
        for tensor in tensors:
            yield Tensor(
                name=tensor.name,
                component=tensor.component,
                num_bytes=tensor.num_bytes * condition,
                first_use=tensor.first_use,
                last_use=tensor.last_use,
                pool=tensor.pool,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One kind of kernel on one rank, executed ``count`` times in a step."""

    name: str
    kind: OperationKind
    phase: OperationPhase
    count: int
    flop: Flop
    """FLOP of one execution; multiply and add are two."""
    num_bytes: Bytes
    """Device-memory traffic of one execution."""
    dtype: Dtype
    m: int = 0
    n: int = 0
    k: int = 0
    num_kernels: int = 1
    """Kernels the host issues for one execution, or as many as its other work takes the time of."""
    slowdown_ratio: float = 1.0
    """Time over that of the plain kernel with the same FLOP, such as fused attention with dropout or uneven experts."""
    unaligned_flop: Flop = 0.0
    """FLOP of batched products whose rows do not start on 16 bytes, beside whose time ``num_bytes`` are moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertChoice:
    """How many experts a token chooses, and from how many of the groups of experts."""

    num_experts_per_tok: int
    num_groups: int = 1
    num_groups_per_tok: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One kind of collective call on one rank, executed ``count`` times in a step."""

    name: str
    kind: CollectiveKind
    axis: Axis
    group_size: int
    num_bytes: Bytes
    """Payload S of one call: the full (unsharded) tensor for all-gather, reduce-scatter and all-reduce."""
    count: int
    phase: OperationPhase
    is_overlappable: bool
    """Whether the engine can hide it under computation of another unit."""
    stride: int = 1
    """Ranks from one member of the group to the next."""
    rounds: int = 1
    """Micro-batches of the step in which it is issued; ``count`` is over all of them."""
    sent_once: ExpertChoice | None = None
    """The choice of experts by one token, for an exchange that sends the token once to every host; else ``None``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageInventory:
    """Everything the worst rank of one pipeline stage holds."""

    stage: int
    moments: tuple[Moment, ...]
    tensors: tuple[Tensor, ...]
    host_bytes: Bytes
    nvme_bytes: Bytes
    load_host_bytes: Bytes
    """Host bytes of every rank while weights are loaded, beside ``host_bytes``."""
    save_host_bytes: Bytes
    """Host bytes of the one rank that saves a whole checkpoint, beside ``host_bytes``."""
    in_flight_micro_batches: float

    def node_host_bytes(self, num_ranks: int) -> Bytes:
        """Host bytes of a node with so many ranks: what stays there, and the larger of what loading and saving add."""
        return num_ranks * self.host_bytes + most(num_ranks * self.load_host_bytes, self.save_host_bytes)
