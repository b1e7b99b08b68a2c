"""The layers of a transformer on one rank, forward and backward by hand.

Shapes: B sequences, S tokens, D hidden size, F feed-forward width, N heads, E elements of a head.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.course.numerics.arrays import Array, Integers, Named

NORM_EPSILON = 1e-5
ROPE_BASE = 10_000.0
"""Llama's values (transformers ``LlamaConfig``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A matrix product whose weight gradient is still to be computed.

    The backward pass has two halves: the gradient of the input, which the layer before waits for, and the gradient of
    the weight, for which nobody waits. Zero-bubble schedules move the second.
    """

    name: str
    inputs: Array
    output_gradient: Array

    def weight_gradient(self) -> Array:
        """``(out, in)``, summed over all tokens."""
        outputs = self.output_gradient.reshape(-1, self.output_gradient.shape[-1])
        return outputs.T @ self.inputs.reshape(-1, self.inputs.shape[-1])


def weight_gradients(products: list[Product]) -> Named:
    """The weight gradients of some products, by name."""
    return {product.name: product.weight_gradient() for product in products}


def rms_norm(x_BSD: Array, weight_D: Array) -> tuple[Array, Array]:
    """The normalised tensor, and one over the root mean square of each token (what the backward keeps).

    Source: Zhang and Sennrich 2019, arXiv:1910.07467, equation 4.
    """
    scale_BS1 = 1.0 / np.sqrt(np.mean(x_BSD * x_BSD, axis=-1, keepdims=True) + x_BSD.dtype.type(NORM_EPSILON))
    return x_BSD * scale_BS1 * weight_D, scale_BS1


def rms_norm_backward(dy_BSD: Array, x_BSD: Array, weight_D: Array, scale_BS1: Array) -> tuple[Array, Array]:
    """Gradients of the input and of the weight."""
    normed_BSD = x_BSD * scale_BS1
    scaled_BSD = dy_BSD * weight_D
    along_BS1 = np.mean(scaled_BSD * normed_BSD, axis=-1, keepdims=True)
    dx_BSD = scale_BS1 * (scaled_BSD - normed_BSD * along_BS1)
    return dx_BSD, (dy_BSD * normed_BSD).reshape(-1, weight_D.size).sum(axis=0)


def rotate(x_BSNE: Array, positions_S: Integers, *, backwards: bool = False) -> Array:
    """Rotary position embedding of every head; backwards, its gradient, which is the opposite rotation.

    Source: Su et al. 2021, arXiv:2104.09864, section 3.4.2, with the halves of a head paired as transformers does.
    """
    half = x_BSNE.shape[-1] // 2
    frequencies = ROPE_BASE ** (-np.arange(half) / half)
    angles_S1E = (positions_S[:, None] * frequencies)[:, None, :]
    cos = np.cos(angles_S1E).astype(x_BSNE.dtype)
    sin = np.sin(angles_S1E).astype(x_BSNE.dtype) * (-1 if backwards else 1)
    low, high = x_BSNE[..., :half], x_BSNE[..., half:]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))``, without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def gate(gate_F: Array, up_F: Array) -> Array:
    """SwiGLU: ``silu(gate) * up``.

    Source: Shazeer 2020, arXiv:2002.05202, section 2.
    """
    return gate_F * sigmoid(gate_F) * up_F


def gate_backward(dy_F: Array, gate_F: Array, up_F: Array) -> tuple[Array, Array]:
    """Gradients of the gate and of the other factor."""
    open_F = sigmoid(gate_F)
    dgate_F = dy_F * up_F * open_F * (1.0 + gate_F * (1.0 - open_F))
    return dgate_F, dy_F * gate_F * open_F


def softmax(x: Array) -> Array:
    """Probabilities along the last dim."""
    shifted = np.exp(x - x.max(axis=-1, keepdims=True))
    probabilities: Array = shifted / shifted.sum(axis=-1, keepdims=True)
    return probabilities


def softmax_backward(dp: Array, probabilities: Array) -> Array:
    """Gradient of what a softmax was taken of."""
    along: Array = (dp * probabilities).sum(axis=-1, keepdims=True)
    return probabilities * (dp - along)
