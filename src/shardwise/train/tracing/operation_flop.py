"""FLOP of the operators that multiply matrices, from their arguments; multiply and add are two.

torch's own counter counts the whole square of causal attention, and no product of groups; the inventory counts the
half that is attended to, each pair once.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from torch import Tensor

BACKWARD_RATIO = 2.5
"""Fused attention backward computes the scores again: five products where forward has two (Dao 2023, arXiv:2307.08691,
section 3.1)."""


def operator_flop(name: str, arguments: Sequence[Any], keywords: dict[str, Any]) -> float:
    """FLOP of one call of an operator; 0 for what multiplies no matrices.

    >>> import torch
    >>> operator_flop("aten::mm", (torch.empty(2, 3), torch.empty(3, 5)), {})
    60.0
    """
    rule = RULES.get(name)
    return float(rule(arguments, keywords)) if rule else 0.0


def _product(left: Tensor, right: Tensor) -> float:
    return 2.0 * prod(left.shape) * right.shape[-1]


def _attention(arguments: Sequence[Any], *, first: int, is_causal: bool) -> float:
    """Pairs of queries and keys times the widths of keys and values; causal ones end at the last key."""
    query, key, value = arguments[first], arguments[first + 1], arguments[first + 2]
    queries, keys = query.shape[-2], key.shape[-2]
    pairs = queries * keys - queries * queries / 2 if is_causal else queries * keys
    return 2.0 * prod(query.shape[:-2]) * pairs * (query.shape[-1] + value.shape[-1])


def _is_causal(arguments: Sequence[Any], keywords: dict[str, Any], position: int) -> bool:
    return bool(keywords.get("is_causal", arguments[position] if len(arguments) > position else False))


def _forward(position: int) -> Callable[[Sequence[Any], dict[str, Any]], float]:
    return lambda arguments, keywords: _attention(
        arguments, first=0, is_causal=_is_causal(arguments, keywords, position)
    )


def _backward(position: int) -> Callable[[Sequence[Any], dict[str, Any]], float]:
    return lambda arguments, keywords: (
        BACKWARD_RATIO * _attention(arguments, first=1, is_causal=_is_causal(arguments, keywords, position))
    )


RULES: dict[str, Callable[[Sequence[Any], dict[str, Any]], float]] = {
    "aten::mm": lambda arguments, _: _product(arguments[0], arguments[1]),
    "aten::bmm": lambda arguments, _: _product(arguments[0], arguments[1]),
    "aten::addmm": lambda arguments, _: _product(arguments[1], arguments[2]),
    "aten::addmm_": lambda arguments, _: _product(arguments[1], arguments[2]),
    "aten::baddbmm": lambda arguments, _: _product(arguments[1], arguments[2]),
    "aten::_grouped_mm": lambda arguments, _: _product(arguments[0], arguments[1]),
    "aten::_scaled_dot_product_cudnn_attention": _forward(6),
    "aten::_scaled_dot_product_flash_attention": _forward(4),
    "aten::_scaled_dot_product_efficient_attention": _forward(6),
    "aten::_scaled_dot_product_cudnn_attention_backward": _backward(14),
    "aten::_scaled_dot_product_flash_attention_backward": _backward(11),
    "aten::_scaled_dot_product_efficient_attention_backward": _backward(11),
}
"""FLOP of an operator, by its name in the schema; grouped products count every row once."""
