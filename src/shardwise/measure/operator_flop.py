"""FLOP of an operator from the shapes that the profiler recorded of its inputs."""

from math import prod

from shardwise.units import Flop

SHAPED_OPERATORS = (
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::_scaled_mm",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_flash_attention_backward",
    "aten::_scaled_dot_product_cudnn_attention_backward",
    "aten::_scaled_dot_product_efficient_attention_backward",
    "aten::_flash_attention_forward",
    "aten::_flash_attention_backward",
)
MOST_ELEMENTS = 2**48
"""Elements of one dim, more than any device holds; shapes with such a dim are not believed."""
BACKWARD_OVER_FORWARD = 2.5
"""Five products of the backward pass over the two of the forward pass (Dao 2023, arXiv:2307.08691, section 3.1)."""


def operator_flop(name: str, dims: object) -> Flop | None:
    """FLOP of one call; ``None`` when the shapes do not say.

    Attention is counted without its mask: a causal one does half.

    Args:
        name: the operator, one of ``SHAPED_OPERATORS``.
        dims: the profiler's ``Input Dims``, a list of shapes.

    >>> operator_flop("aten::mm", [[4096, 1024], [1024, 512]]) == 2 * 4096 * 1024 * 512
    True
    """
    if not isinstance(dims, list):
        return None
    shapes = [tuple(shape) for shape in dims if isinstance(shape, list) and shape and _is_shape(shape)]
    if "attention" in name:
        return _attention_flop(shapes[1:] if name.endswith("_backward") else shapes, is_backward="backward" in name)
    matrices = [shape for shape in shapes if len(shape) in (2, 3)]
    if name in ("aten::addmm", "aten::baddbmm") and len(matrices) == 3:
        matrices = matrices[1:]
    if len(matrices) < 2 or matrices[0][-1] != matrices[1][-2]:
        return None
    num_products: int = prod(matrices[0]) * matrices[1][-1]
    return 2.0 * num_products


def _attention_flop(shapes: list[tuple[int, ...]], *, is_backward: bool) -> Flop | None:
    """Queries and keys as ``(batch, heads, tokens, head_dim)``."""
    if len(shapes) < 2 or len(shapes[0]) != 4 or len(shapes[1]) != 4:
        return None
    batch, heads, tokens, head_dim = shapes[0]
    forward = 4.0 * batch * heads * tokens * shapes[1][2] * head_dim
    return forward * BACKWARD_OVER_FORWARD if is_backward else forward


def _is_shape(shape: list[object]) -> bool:
    return all(isinstance(size, int) and 0 <= size < MOST_ELEMENTS for size in shape)
