"""Operations issued kernel by kernel where nothing compiles them: rounding to 8 bits, unpacking of 4-bit weights,
adapters beside matrices.

Bytes are counted over the lines of ``train/fp8.py``, ``train/nf4.py``, ``train/lora.py`` and peft's
``tuners/lora/layer.py``: what each kernel reads and writes of a tensor. Compiled, the same lines become one or two
kernels, which ``block_operations.py`` counts.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from shardwise.model import LayerSpec
from shardwise.recipe import Recipe
from shardwise.step.held_weights import adapter_weights
from shardwise.step.inventory import Operation
from shardwise.step.matmul_operations import local_matrix
from shardwise.step.operation_context import OperationContext

BARE_KERNELS = 4
"""Kernels in a row, with neither modules nor the graph of gradients between them, that take the host as long as one
kernel of a block: a bare in-place addition takes 7 to 11 us where those take 33 and 40
(``2026-11-28-h100-dispatch.csv``)."""

ROUNDING_BYTES = 33
"""Bytes per 16-bit number rounded to 8 bits: magnitude (read 2, write 2), largest (2), fp32 copy (2, 4), divided (4,
4), clamped (4, 4), stored (4, 1)."""
ROUNDING_KERNELS = 9
"""Kernels of that rounding, three of them on single numbers: the scale in fp32, its floor and its quotient."""
TRANSPOSE_BYTES = 2
"""Bytes per 8-bit number read and written in the order that the product reads."""

UNPACKING_BYTES = 10.5
"""Bytes per 4-bit weight expanded to 16 bits, two of them a byte: index (0.5 read, 2 written), pair of values (2, 2),
scaled (2, 2)."""
UNPACKING_KERNELS = 8
"""Kernels of that expansion, five of them on scales, one for 64 weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSums:
    """Bytes and kernels around the products of an adapter; bytes for a base of 16 bits."""

    per_output: tuple[int, int]
    """Bytes an output of the adapted matrix, forward and backward."""
    per_input: tuple[int, int]
    kernels: tuple[int, int]
    """Launches, in units of a usual kernel of a module. A cast, a scaling or a sum of peft is a bare call, which takes
    the host 7 to 11 us where a usual kernel takes 33 (``2026-11-28-h100-dispatch.csv``): four of them count as one."""


ADAPTER_SUMS: dict[int, AdapterSums] = {
    # Our trainer. Outputs: added to the base product (read two, write one), and the gradient times alpha over rank.
    # Inputs: two gradients added up. Kernels: casts of both factors, and of their gradients, besides.
    0: AdapterSums(per_output=(6, 4), per_input=(0, 6), kernels=(3, 4)),
    # peft under autocast. Outputs: scaled (4), added (6); the gradient scaled (4). Inputs: cast to fp32 (6) and back
    # (6); the gradient likewise (12), and added to the matrix's own (6). Kernels: casts of both factors besides.
    2: AdapterSums(per_output=(10, 4), per_input=(12, 18), kernels=(2, 1)),
    # peft without autocast. Outputs: scaled in fp32 (8), added to the base product in fp32 (10), cast (6); the
    # gradient cast to fp32 (6), scaled (8), and cast back for the base (6). Inputs: cast (6); the gradient cast back
    # (6), added (6).
    4: AdapterSums(per_output=(24, 20), per_input=(6, 12), kernels=(1, 1)),
}
"""Bytes and kernels of an adapter, by the bytes per element it casts its input to; 0 where it reads the matrix's."""


def adapted_and_packed(layer: LayerSpec, recipe: Recipe) -> tuple[int, int]:
    """Number of a block's matrices with an adapter beside them, and of those in 4 bits."""
    if recipe.adapter == "none":
        return 0, 0
    adapted = len(adapter_weights(layer, rank=recipe.lora_rank, targets=recipe.lora_targets)) // 2
    packed = sum(weight.is_matrix for weight in layer.weights) if recipe.adapter == "qlora" else 0
    return adapted, packed


def adapter_sums(layer: LayerSpec, context: OperationContext, recipe: Recipe) -> Iterator[Operation]:
    """Operations around an adapter's four products, for all adapted matrices of a block."""
    weights = adapter_weights(layer, rank=recipe.lora_rank, targets=recipe.lora_targets)
    matrices = [local_matrix(weight, context) for weight in weights]
    inputs = sum(first.rows * first.in_features for first in matrices[::2])
    outputs = sum(second.rows * second.out_features for second in matrices[1::2])
    scale, number = context.element_bytes / 2, len(matrices) // 2
    sums = ADAPTER_SUMS[context.adapted_input_bytes]
    moved = [scale * (out * outputs + into * inputs) for out, into in zip(sums.per_output, sums.per_input, strict=True)]
    calls = [count * number for count in sums.kernels]
    yield context.memory_operation("adapter sums", "forward", moved[0], num_kernels=calls[0])
    yield context.memory_operation("adapter sums.backward", "backward", moved[1], num_kernels=calls[1])


def of_factors(context: OperationContext) -> OperationContext:
    """The facts that products with an adapter's factors follow from: fp32 where nothing casts fp32 factors."""
    if context.adapted_input_bytes < 4:
        return context
    return replace(context, element_bytes=4, weight_gradient_bytes=4, matmul_dtype="fp32")


def unpacking(layer: LayerSpec, context: OperationContext) -> Iterator[Operation]:
    """Operations that expand the base weights of a block, in forward and again in backward."""
    matrices = [weight for weight in layer.weights if weight.is_matrix]
    num_bytes = UNPACKING_BYTES * sum(weight.num_params for weight in matrices) / context.layout.tp
    kernels = ceil(UNPACKING_KERNELS * len(matrices) / BARE_KERNELS)
    yield context.memory_operation("dequantise", "forward", num_bytes, num_kernels=kernels)
    yield context.memory_operation("dequantise.backward", "backward", num_bytes, num_kernels=kernels)


def rounding(products: Iterable[Operation], context: OperationContext) -> Iterator[Operation]:
    """Operations that round both sides of every 8-bit product, and transpose what it reads the other way.

    Only weights of the products for inputs, and both sides of those for weights, are read the other way.
    """
    for phase in ("forward", "backward"):
        moved = kernels = 0.0
        for product in (one for one in products if one.phase == phase):
            # An m x n product of inner length k reads m k and k n numbers, whatever the number of experts.
            left, right = product.flop / 2 / product.n, product.flop / 2 / product.m
            transposed = 0.0 if phase == "forward" else right
            transposed += left if product.name.endswith(".wgrad") else 0.0
            moved += ROUNDING_BYTES * (left + right) + TRANSPOSE_BYTES * transposed
            kernels += 2 * ROUNDING_KERNELS + (transposed > 0) + product.name.endswith(".wgrad")
        name = "fp8 casts" if phase == "forward" else "fp8 casts.backward"
        calls = ceil(kernels / BARE_KERNELS)
        yield context.memory_operation(name, "forward" if phase == "forward" else "backward", moved, num_kernels=calls)
