"""Bytes of one block that a backward pass in halves keeps."""

from shapes import dense_layer
from shardwise.step.activations import BlockContext
from shardwise.step.block_memory import block_memory
from step.test_activations import context


def test_tensor_parallelism_divides_the_gradients_of_outputs_of_column_products_alone():
    """Of a Llama-3-8B block tp 2 divides q, k, v, gate and up; the outputs of o and down and both norms are whole."""
    layer = dense_layer(hidden_size=4096, intermediate_size=14336, heads=32, kv_heads=8)
    divided = 4096 + 1024 + 1024 + 14336 + 14336
    whole = 4 * 4096

    def gradients(block: BlockContext) -> int:
        return block_memory(layer, block).gradients

    assert gradients(context()) == 2 * 512 * (divided + whole)
    assert gradients(context(tp=2)) == 2 * 512 * (divided // 2 + whole)
