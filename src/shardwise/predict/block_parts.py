"""Which part of a block every operation belongs to, between the collectives inside the block.

A block is one branch after the other: attention, then feed-forward; parallel blocks have one of both. A branch is
column-parallel products, a core, and row-parallel products; experts lie between two exchanges. Norms and residuals
belong to all branches in equal parts, casts and biases to all parts in proportion to their time.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardwise.model import LayerSpec, MoeSpec
from shardwise.step.inventory import Operation
from shardwise.units import Seconds

PartName = Literal["norm", "inputs", "core", "outputs", "experts", "shared experts"]
Place = tuple[int, PartName]
"""A branch and its part."""
EVERYWHERE = ("norms", "residuals", "dropout")
"""Operations that every branch has its share of."""


@dataclass(slots=True)
class Direction:
    """Seconds of one part in one direction, without weight gradients."""

    total_s: Seconds = 0.0
    products_s: Seconds = 0.0
    """Seconds of the part's matrix products."""
    pieces_s: Seconds = 0.0
    """Seconds of the same products when each is cut into as many pieces as tensor-parallel ranks."""
    num_products: int = 0

    @property
    def others_s(self) -> Seconds:
        """Seconds of everything but matrix products."""
        return self.total_s - self.products_s


@dataclass(slots=True)
class Part:
    """Seconds of one part for one micro-batch."""

    forward: Direction = field(default_factory=Direction)
    backward: Direction = field(default_factory=Direction)
    weight_backward_s: Seconds = 0.0

    @property
    def whole_backward_s(self) -> Seconds:
        """Backward seconds with weight gradients."""
        return self.backward.total_s + self.weight_backward_s


@dataclass(slots=True)
class Branch:
    """One branch of a block."""

    name: str
    parts: dict[PartName, Part] = field(default_factory=dict)

    @property
    def has_experts(self) -> bool:
        """Whether tokens are sent to experts."""
        return "experts" in self.parts

    def part(self, name: PartName) -> Part:
        """A part, empty where the branch has none."""
        return self.parts.get(name) or Part()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOperation:
    """An operation of a block with its time on the device."""

    operation: Operation
    duration_s: Seconds


def timed_operations(operations: Sequence[Operation], durations: Sequence[Seconds]) -> tuple[TimedOperation, ...]:
    """The operations of a block with their time on the device."""
    return tuple(
        TimedOperation(operation=operation, duration_s=duration_s)
        for operation, duration_s in zip(operations, durations, strict=True)
    )


def block_branches(
    layer: LayerSpec,
    timed: Sequence[TimedOperation],
    *,
    pieces_s: Callable[[Operation], Seconds] | None = None,
) -> tuple[Branch, ...]:
    """The branches of a block in forward order, from the operations of both passes.

    Args:
        layer: the block.
        timed: all its operations.
        pieces_s: time of a product in pieces, when tensor parallelism runs piece by piece.
    """
    places = _places(layer, [one.operation for one in timed if one.operation.phase == "forward"])
    count = 1 + max((branch for branch, _ in places.values()), default=0)
    branches = tuple(Branch(name=_branch_name(layer, index, count)) for index in range(count))
    spread: list[TimedOperation] = []
    for one in timed:
        name = base_name(one.operation)
        place = places.get(name)
        if name in EVERYWHERE:
            for branch in branches:
                _add(branch, "norm", one, share=1 / count)
        elif name == "experts.permute":
            _add(branches[-1], "inputs", one, share=0.5)
            _add(branches[-1], "outputs", one, share=0.5)
        elif place is None:
            spread.append(one)
        else:
            branch_index, part = place
            _add(branches[branch_index], part, one, pieces_s=pieces_s)
    for one in spread:
        _spread(branches, one)
    return branches


def base_name(operation: Operation) -> str:
    """The name of the forward operation that an operation belongs to."""
    return operation.name.removesuffix(".backward").removesuffix(".dgrad").removesuffix(".wgrad")


def _add(
    branch: Branch,
    name: PartName,
    one: TimedOperation,
    *,
    share: float = 1.0,
    pieces_s: Callable[[Operation], Seconds] | None = None,
) -> None:
    if name not in branch.parts:
        branch.parts[name] = Part()
    part = branch.parts[name]
    operation, duration_s = one.operation, share * one.duration_s
    if operation.name.endswith(".wgrad"):
        part.weight_backward_s += duration_s
        return
    direction = part.backward if operation.phase == "backward" else part.forward
    direction.total_s += duration_s
    if operation.kind == "matmul":
        direction.products_s += duration_s
        direction.pieces_s += pieces_s(operation) if pieces_s else duration_s
        direction.num_products += 1


def _branch_name(layer: LayerSpec, index: int, count: int) -> str:
    if count == 1 and layer.is_parallel:
        return "attention and feed-forward"
    if layer.mixer is not None and index == 0:
        return "attention"
    return "feed-forward" if index == count - 1 and layer.feed_forward is not None else "cross-attention"


def _places(layer: LayerSpec, forward: Iterable[Operation]) -> dict[str, Place]:
    """Where every operation of a forward pass belongs; a branch ends with its row-parallel product."""
    rows = {weight.name.removesuffix(".weight") for weight in layer.weights if weight.split == "row"}
    is_merged = layer.is_parallel and not isinstance(layer.feed_forward, MoeSpec)
    mixers = (layer.mixer is not None) + (layer.cross_attention is not None)
    last = 0 if is_merged else max(0, mixers - (layer.feed_forward is None))
    found: dict[str, Place] = {}
    branch = 0
    for operation in forward:
        name = operation.name
        adapted = next((place for product, place in found.items() if name.startswith(product)), None)
        if adapted is not None and operation.kind == "matmul":
            found[name] = adapted
        elif operation.kind == "grouped_matmul" or name == "experts.activation":
            found[name] = (last, "experts")
        elif "shared_expert" in name:
            found[name] = (last, "shared experts")
        elif operation.kind == "matmul":
            found[name] = (min(branch, last), "outputs" if name in rows else "inputs")
            branch += name in rows
        elif name in ("delta_rule", "scan") or name.endswith((".core", ".pieces", ".merged_pieces")):
            found[name] = (int(name.startswith("cross")), "core")
        elif name.endswith((".rotary", ".qk_norm", ".repeated_heads")):
            found[name] = (int(name.startswith("cross")), "inputs")
        elif name in ("mlp.activation", "router.scores"):
            found[name] = (last, "inputs")
    return found


def _spread(branches: Sequence[Branch], one: TimedOperation) -> None:
    """Divide an operation among all parts as they take time in its direction."""
    is_backward = one.operation.phase == "backward"
    named = [(branch, name, part) for branch in branches for name, part in branch.parts.items()]
    weights = [part.backward.total_s if is_backward else part.forward.total_s for _, _, part in named]
    total = sum(weights)
    for (branch, name, _), weight in zip(named, weights, strict=True):
        _add(branch, name, one, share=weight / total if total else 1 / len(named))
