"""What a log amounts to: the highest memory of every place by component, the collectives, and the FLOP of operators."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from shardwise.ledger import MEMORY_COMPONENTS, MemoryComponent, Phase
from shardwise.train.tracing.recorder import Allocation, Call, Log
from shardwise.train.tracing.run_rank import RankLog
from shardwise.train.tracing.whereabouts import AFTER_BLOCKS, BEFORE_BLOCKS, Place

Vector = tuple[int, ...]
"""Bytes by component, in the order of ``MEMORY_COMPONENTS``."""
COMPONENT_INDEX: dict[MemoryComponent, int] = {name: index for index, name in enumerate(MEMORY_COMPONENTS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceKey:
    """A place that steps of other depths have too: blocks are counted from the nearer end of their chunk."""

    phase: Phase
    micro_batch: int
    chunk: int
    position: int
    """The block, from 0 in the front half, from -1 in the back half; in chunk -1, 0 is before all blocks, 1 after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKey:
    """One kind of collective call."""

    kind: str
    axis: str
    group_size: int
    num_bytes: int
    phase: str
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FlopKey:
    """One kind of operator."""

    operator: str
    phase: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """One rank's step."""

    places: dict[PlaceKey, Vector]
    """Bytes by component at the fullest operator of each place."""
    calls: dict[CallKey, float]
    """Calls in the step."""
    flop: dict[FlopKey, float]
    """FLOP in the whole step."""


def summarise(
    traced: RankLog,
    *,
    chunk_sizes: tuple[int, ...],
    repeats: Callable[[Place, str], float],
    axis: Callable[[Call], str],
) -> StepSummary:
    """The summary of a log.

    Args:
        traced: the log.
        chunk_sizes: blocks of every pipeline chunk of the rank.
        repeats: how many micro-batches of the whole step one traced micro-batch stands for, by place and kind.
        axis: the name of the ranks a call runs over.
    """
    calls: defaultdict[CallKey, float] = defaultdict(float)
    for call in traced.log.calls:
        key = CallKey(
            kind=call.kind,
            axis=axis(call),
            group_size=len(call.ranks),
            num_bytes=call.num_bytes,
            phase=_operation_phase(call.place),
            unit=_unit(call.unit),
        )
        calls[key] += repeats(call.place, call.kind)
    flop: defaultdict[FlopKey, float] = defaultdict(float)
    for work in traced.log.work:
        operator = work.operator.removeprefix("aten::")
        flop[FlopKey(operator=operator, phase=_operation_phase(work.place))] += work.flop * repeats(work.place, "flop")
    return StepSummary(places=_places(traced, chunk_sizes), calls=dict(calls), flop=dict(flop))


def component_of(allocation: Allocation, log: Log, *, num_vocab_rows: int) -> MemoryComponent:
    """The memory component of an allocation: by its mark, or else where it was made and how long it lives."""
    marked = next((name for name in MEMORY_COMPONENTS if name == allocation.mark), None)
    return marked or ("gradients" if allocation.mark == "reduced" else _by_lifetime(allocation, log, num_vocab_rows))


def _by_lifetime(allocation: Allocation, log: Log, num_vocab_rows: int) -> MemoryComponent:
    place = allocation.place
    is_at_head = place.phase == "loss" or (place.phase == "backward" and place.block == AFTER_BLOCKS)
    if is_at_head and num_vocab_rows and allocation.num_columns == num_vocab_rows:
        return "logits"
    end = log.places[allocation.freed] if allocation.freed is not None and allocation.freed < len(log.places) else None
    if place.phase in ("forward", "loss"):
        return "activations" if end is None or end.phase == "backward" else "temporaries"
    if place.phase == "backward":
        if place.is_recompute:
            return "activations"
        is_kept = end is None or end.phase == "optimizer" or end.micro_batch != place.micro_batch
        return "gradients" if is_kept else "temporaries"
    return "temporaries"


def _places(traced: RankLog, chunk_sizes: tuple[int, ...]) -> dict[PlaceKey, Vector]:
    log = traced.log
    changes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for allocation in log.allocations:
        if not allocation.num_bytes:
            continue
        index = COMPONENT_INDEX[component_of(allocation, log, num_vocab_rows=traced.num_vocab_rows)]
        num_bytes = -(-allocation.num_bytes // traced.unit_bytes) * traced.unit_bytes
        changes[allocation.allocated].append((index, num_bytes))
        if allocation.freed is not None:
            changes[allocation.freed].append((index, -num_bytes))
    label = _labels(chunk_sizes)
    held = [0] * len(MEMORY_COMPONENTS)
    total = 0
    best: dict[PlaceKey, tuple[int, Vector]] = {}
    for index, place in enumerate(log.places):
        for component, num_bytes in changes.get(index, ()):
            held[component] += num_bytes
            total += num_bytes
        key = label(place)
        if key not in best or total > best[key][0]:
            best[key] = (total, tuple(held))
    return {key: vector for key, (_, vector) in best.items()}


def _labels(chunk_sizes: tuple[int, ...]) -> Callable[[Place], PlaceKey]:
    places: dict[int, tuple[int, int]] = {BEFORE_BLOCKS: (-1, 0), AFTER_BLOCKS: (-1, 1)}
    block = 0
    for chunk, size in enumerate(chunk_sizes):
        for position in range(size):
            places[block] = (chunk, position if position < size // 2 else position - size)
            block += 1

    def label(place: Place) -> PlaceKey:
        chunk, position = places[place.block]
        return PlaceKey(phase=place.phase, micro_batch=place.micro_batch, chunk=chunk, position=position)

    return label


def _operation_phase(place: Place) -> str:
    """The inventory's names: the loss is forward, and what is computed again is told apart."""
    if place.is_recompute:
        return "recompute"
    return "forward" if place.phase in ("loss", "load") else place.phase


def _unit(text: str) -> str:
    """``FSDP::all_gather (model.layers.3)`` as ``model.layers.*``; the root has no name."""
    inside = text.partition("(")[2].rpartition(")")[0]
    if not inside:
        return "root" if text else ""
    return ".".join("*" if part.isdigit() else part for part in inside.split("."))


def totals(summary: StepSummary) -> Iterator[tuple[PlaceKey, int]]:
    """Every place with its bytes."""
    for key, vector in summary.places.items():
        yield key, sum(vector)


def peak(summary: StepSummary, phases: tuple[Phase, ...] | None = None) -> tuple[PlaceKey, Vector]:
    """The fullest place, of some phases or of all."""
    chosen = [(key, vector) for key, vector in summary.places.items() if phases is None or key.phase in phases]
    return max(chosen, key=lambda item: sum(item[1]))


def extended(shallow: StepSummary, deep: StepSummary, *, added: int) -> StepSummary:
    """The summary with ``added`` times the difference between two depths on top of the shallower one.

    Blocks in the middle are all alike, so what every place holds, how often every call is issued, and the FLOP of every
    operator grow by the same amount with every block. Calls whose payload grows with the depth, instead of their
    number, are matched by everything else.
    """
    places = {
        key: tuple(low + added * (high - low) for low, high in zip(vector, deep.places[key], strict=True))
        for key, vector in shallow.places.items()
        if key in deep.places
    }
    flop = {key: value + added * (deep.flop.get(key, 0.0) - value) for key, value in shallow.flop.items()}
    return StepSummary(places=places, calls=_extended_calls(shallow.calls, deep.calls, added), flop=flop)


def _extended_calls(shallow: dict[CallKey, float], deep: dict[CallKey, float], added: int) -> dict[CallKey, float]:
    common = {key: value + added * (deep[key] - value) for key, value in shallow.items() if key in deep}
    grown = [key for key in shallow if key not in deep]
    matches = {_without_bytes(key): key for key in deep if key not in shallow}
    for key in grown:
        match = matches.get(_without_bytes(key))
        if match is None:
            continue
        num_bytes = key.num_bytes + added * (match.num_bytes - key.num_bytes)
        common[
            CallKey(
                kind=key.kind,
                axis=key.axis,
                group_size=key.group_size,
                num_bytes=num_bytes,
                phase=key.phase,
                unit=key.unit,
            )
        ] = shallow[key]
    return common


def _without_bytes(key: CallKey) -> tuple[str, ...]:
    return (key.kind, key.axis, str(key.group_size), key.phase, key.unit)


def by_kind(summary: StepSummary) -> Counter[tuple[str, str, int]]:
    """Bytes of all calls by kind, axis and group size."""
    found: Counter[tuple[str, str, int]] = Counter()
    for key, count in summary.calls.items():
        found[key.kind, key.axis, key.group_size] += round(key.num_bytes * count)
    return found
