"""Tensor-parallel collectives that run piece by piece under the products that need them.

A gather brings one rank's piece after the other while the product of the piece before runs; a product computes the
pieces of other ranks first and sends each while the next one runs. Copy engines move the pieces, so neither side slows
the other (torch ``distributed/_symmetric_memory`` ``_fused_all_gather_matmul`` and ``_fused_matmul_reduce_scatter``).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from shardwise.model import LayerSpec
from shardwise.step.inventory import CollectiveKind, Operation, OperationPhase
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A column-parallel product and the row-parallel one that follows it, in one direction."""

    phase: OperationPhase
    gathering: tuple[Operation, ...]
    """Products that read what a gather brings: the column-parallel ones forward, the row-parallel one backward."""
    scattering: tuple[Operation, ...]
    """Products whose partial results are summed over ranks."""


def product_pairs(layer: LayerSpec, operations: Iterable[Operation]) -> tuple[Pair, ...]:
    """The products of one block beside its collectives, forward and input gradients."""
    row_split = {weight.name.removesuffix(".weight") for weight in layer.weights if weight.split == "row"}
    whole = {weight.name.removesuffix(".weight") for weight in layer.weights if weight.split == "replicated"}
    found: list[Pair] = []
    phases: tuple[tuple[OperationPhase, str], ...] = (("forward", ""), ("backward", ".dgrad"))
    for phase, suffix in phases:
        columns: list[Operation] = []
        for operation in operations:
            name = operation.name.removesuffix(suffix)
            if operation.kind != "matmul" or operation.phase != phase or name in whole or not _ends(operation, suffix):
                continue
            if name not in row_split:
                columns.append(operation)
                continue
            first, second = (tuple(columns), (operation,)) if phase == "forward" else ((operation,), tuple(columns))
            found.append(Pair(phase=phase, gathering=first, scattering=second))
            columns = []
    return tuple(found)


def _ends(operation: Operation, suffix: str) -> bool:
    return operation.name.endswith(suffix) and not operation.name.endswith(".wgrad")


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedCalls:
    """The collectives of a pair: one gather and one reduce-scatter in each direction."""

    gather_s: Seconds
    scatter_s: Seconds
    partial_sum_s: Seconds
    """Reading every rank's partial result and writing their sum, which a reduce-scatter does on the way."""
    ranks: int


def exposed_shares(
    pairs: Sequence[Pair], calls: PairedCalls, time_of: Callable[[Operation], Seconds]
) -> dict[tuple[CollectiveKind, OperationPhase], float]:
    """The part of a block's collectives that its products do not hide, by kind and phase.

    The sum of several products, such as the input gradients of query, key and value, is reduced after all of them:
    torch fuses a reduce-scatter only with the one product that makes its input (``_inductor/fx_passes/
    micro_pipeline_tp.py`` ``fuse_matmul_reduce_scatter``).
    """
    totals: dict[tuple[CollectiveKind, OperationPhase], list[float]] = {}
    for pair in pairs:
        if calls.gather_s:
            share = _stretched_s(pair.gathering, calls.gather_s, calls.ranks, time_of) / calls.gather_s
            totals.setdefault(("all_gather", pair.phase), []).append(share)
        if calls.scatter_s:
            added_s = calls.scatter_s
            if len(pair.scattering) == 1:
                added_s = calls.partial_sum_s + _stretched_s(pair.scattering, calls.scatter_s, calls.ranks, time_of)
            totals.setdefault(("reduce_scatter", pair.phase), []).append(added_s / calls.scatter_s)
    return {key: max(0.0, sum(shares) / len(shares)) for key, shares in totals.items()}


def _stretched_s(
    products: Sequence[Operation], call_s: Seconds, ranks: int, time_of: Callable[[Operation], Seconds]
) -> Seconds:
    """How much longer products take in pieces beside their collective than whole and alone."""
    pieces_s = sum(ranks * time_of(_piece(product, ranks)) for product in products)
    return pieced_s(work_s=pieces_s, call_s=call_s, ranks=ranks) - sum(map(time_of, products))


def _piece(product: Operation, ranks: int) -> Operation:
    """A product of one rank's part of the rows."""
    return replace(
        product, m=max(1, product.m // ranks), flop=product.flop / ranks, num_bytes=round(product.num_bytes / ranks)
    )


def pieced_s(*, work_s: Seconds, call_s: Seconds, ranks: int) -> Seconds:
    """Time of a product and its collective, both in as many pieces as ranks; the own piece is not moved.

    >>> pieced_s(work_s=8.0, call_s=3.0, ranks=4)
    8.0
    >>> pieced_s(work_s=4.0, call_s=6.0, ranks=4)
    7.0
    """
    return max(work_s, call_s + work_s / ranks)
