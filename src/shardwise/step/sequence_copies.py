"""Copies that put a sequence in order around the collectives of sequence parallelism.

NCCL puts the parts of all ranks one after the other. With several sequences in a micro-batch the parts of one sequence
lie apart, so torch copies everything once after each all-gather and once before each reduce-scatter
(``torch/_utils.py``, ``_maybe_view_chunk_cat``, and ``reduce_scatter_tensor`` of ``_functional_collectives.py``; our
``train/exchange.py`` does the same). One sequence needs no copy. Megatron keeps the sequence as the first dim, and
asynchronous tensor parallelism multiplies the pieces of forward as they come; neither copies.
"""

from collections.abc import Iterator

from shardwise.model import LayerSpec
from shardwise.step.inventory import Operation
from shardwise.step.operation_context import OperationContext

GATHERED_COPIES = "gathered sequences"
SCATTERED_COPIES = "sequences to scatter"
BYTES_PER_BYTE = 2
"""A copy reads and writes."""


def sequence_copies(layer: LayerSpec, context: OperationContext) -> Iterator[Operation]:
    """Both copies of every pair of column- and row-parallel products, forward and backward."""
    if context.sequence_shards == 1 or context.sequences == 1 or not context.has_torch_host:
        return
    rows = sum(weight.split == "row" and not weight.is_expert for weight in layer.weights)
    pairs = min(rows, 1) if layer.is_parallel else rows
    elements = BYTES_PER_BYTE * pairs * context.tokens * context.hidden_size
    for name, element_bytes in (
        (GATHERED_COPIES, context.gathered_element_bytes),
        (SCATTERED_COPIES, context.element_bytes),
    ):
        num_bytes = elements * element_bytes
        forward, backward = context.memory_operations(name, (num_bytes, num_bytes), (pairs, pairs))
        if not context.layout.async_tensor_parallel:
            yield forward
        yield backward
