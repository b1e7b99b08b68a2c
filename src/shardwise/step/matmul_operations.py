"""Matrix products of one weight: forward, input gradient and weight gradient, with the shapes one rank computes.

A product of ``m`` rows, ``n`` columns and inner length ``k`` costs ``2 m n k`` FLOP.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from math import ceil

from shardwise.cluster import Dtype
from shardwise.model import MoeSpec, Weight
from shardwise.step.inventory import Operation, OperationKind, OperationPhase
from shardwise.step.layer_placement import tensor_shards
from shardwise.step.operation_context import OperationContext
from shardwise.units import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMatrix:
    """One weight as one rank multiplies with it."""

    name: str
    kind: OperationKind
    dtype: Dtype
    rows: int
    """Number of tokens, or of token copies over all local experts."""
    out_features: int
    in_features: int
    groups: int = 1
    """Number of experts on this rank."""
    is_split_by_output: bool = False
    """Whether tensor parallelism divides its output features."""
    slowdown_ratio: float = 1.0
    """Time of experts' products over that with even routing."""
    num_kernels: int = 1
    """Kernels that the host issues for one product."""


def local_matrix(weight: Weight, context: OperationContext) -> LocalMatrix:
    """A matrix every token passes through, divided by tensor parallelism."""
    out_features, in_features = _local_features(weight, context)
    is_plain = weight.role in ("router", "head")
    return LocalMatrix(
        name=weight.name.removesuffix(".weight"),
        kind="matmul",
        dtype=context.core_dtype if is_plain else context.matmul_dtype,
        rows=context.replicated_tokens() if weight.split == "replicated" else context.tokens,
        out_features=out_features,
        in_features=in_features,
        is_split_by_output=weight.split == "column",
    )


def local_experts(weight: Weight, moe: MoeSpec, context: OperationContext) -> LocalMatrix:
    """The experts of one rank, with the shapes of balanced routing; what imbalance adds is a slowdown.

    Every rank of an expert-parallel group receives as many token copies as it sends, ``T K / tp`` (times the expert
    tensor degree, whose ranks all see the same copies), spread over ``E / ep`` experts.
    """
    layout = context.layout
    out_features, in_features = _local_features(weight, context)
    groups = max(1, moe.num_experts // layout.ep)
    return LocalMatrix(
        name=weight.name.removesuffix(".weight"),
        kind="grouped_matmul",
        dtype=context.matmul_dtype,
        rows=ceil(context.tokens * moe.num_experts_per_tok * layout.expert_tp / layout.tp),
        out_features=out_features,
        in_features=in_features,
        groups=groups,
        is_split_by_output=weight.split == "column",
        slowdown_ratio=context.routing_slowdown_ratio,
        num_kernels=groups if context.issues_each_expert else 1,
    )


def _local_features(weight: Weight, context: OperationContext) -> tuple[int, int]:
    shards = tensor_shards(weight, context.layout)
    out_features, in_features = weight.shape[-2:]
    if weight.split in ("column", "vocab"):
        out_features = ceil(out_features / shards)
    elif weight.split == "row":
        in_features = ceil(in_features / shards)
    return out_features, in_features


def joined(matrices: Iterable[LocalMatrix]) -> Iterator[LocalMatrix]:
    """Neighbours that read the same input as one matrix: parts of one module, as long as they are split by output.

    Query, key and value, or gate and up, of dense layers and of experts; low-rank projections have inputs of their own.
    """
    for _, group in groupby(matrices, key=_input_of):
        parts = list(group)
        if len(parts) == 1 or not parts[0].is_split_by_output:
            yield from parts
            continue
        names = "+".join(part.name.rpartition(".")[2] for part in parts)
        yield replace(
            parts[0],
            name=".".join(filter(None, (parts[0].name.rpartition(".")[0], names))),
            out_features=sum(part.out_features for part in parts),
        )


def _input_of(matrix: LocalMatrix) -> tuple[object, ...]:
    module = matrix.name.partition("[")[0].rpartition(".")[0]
    return (
        module,
        matrix.is_split_by_output,
        matrix.kind,
        matrix.dtype,
        matrix.rows,
        matrix.groups,
        matrix.in_features,
    )


def matrix_operations(matrix: LocalMatrix, context: OperationContext, *, is_trained: bool) -> Iterator[Operation]:
    """Forward, input gradient and, when the weight is trained, weight gradient of one matrix."""
    n, k = matrix.out_features, matrix.in_features
    read = 1 if matrix.dtype == "fp8" else context.element_bytes
    written = context.element_bytes
    weights = matrix.groups * n * k
    rows = ceil(matrix.rows / matrix.groups)
    into, out = matrix.rows * k, matrix.rows * n
    yield _product(matrix, "", "forward", read * (into + weights) + written * out, (rows, n, k))
    yield _product(matrix, ".dgrad", "backward", read * (out + weights) + written * into, (rows, k, n))
    if is_trained:
        gradient = context.weight_gradient_bytes * weights
        yield _product(matrix, ".wgrad", "backward", read * (into + out) + gradient, (n, k, rows))


def _product(
    matrix: LocalMatrix, suffix: str, phase: OperationPhase, num_bytes: Bytes, shape: tuple[int, int, int]
) -> Operation:
    m, n, k = shape
    return Operation(
        name=matrix.name + suffix,
        kind=matrix.kind,
        phase=phase,
        count=1,
        flop=2.0 * matrix.rows * matrix.out_features * matrix.in_features,
        num_bytes=num_bytes,
        dtype=matrix.dtype,
        m=m,
        n=n,
        k=k,
        slowdown_ratio=matrix.slowdown_ratio,
        num_kernels=matrix.num_kernels,
    )
