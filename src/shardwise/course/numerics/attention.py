"""Causal attention over one block of keys after the other, forward and backward, as flash and ring attention do it.

The softmax is online: a running maximum and a running sum rescale what has been added so far, so that no rank ever
needs all scores. The backward keeps only the output and the logarithm of the sum, and computes the scores again.

Shapes: B sequences, S queries, T keys, H query heads, K key-value heads, E elements of a head; M = S x H/K queries that
share one key-value head.

Source: Dao et al. 2022, arXiv:2205.14135, algorithms 1 and 4; Liu et al. 2023, arXiv:2310.01889, algorithm 1.
"""

from dataclasses import dataclass

import numpy as np

from shardwise.course.numerics.arrays import Array, Integers, Mask


@dataclass(slots=True, kw_only=True)
class Attention:
    """Attention of some queries to the keys seen so far."""

    queries_BKME: Array
    positions_M: Integers
    output_BKME: Array
    """Weighted sum of the values seen so far, not divided by ``total_BKM1`` yet."""
    maximum_BKM1: Array
    total_BKM1: Array
    num_scores: int = 0
    """Query-key pairs that were computed, causally masked ones left out."""

    def add(self, k_BTKE: Array, v_BTKE: Array, positions_T: Integers) -> None:
        """Attend to another block of keys; the first one has to hold a key that every query sees."""
        seen_MT = self.positions_M[:, None] >= positions_T[None, :]
        if not seen_MT.any():
            return
        scores_BKMT = _scores(self.queries_BKME, k_BTKE, seen_MT)
        maximum_BKM1 = np.maximum(self.maximum_BKM1, scores_BKMT.max(axis=-1, keepdims=True))
        rescale_BKM1 = np.exp(self.maximum_BKM1 - maximum_BKM1)
        weights_BKMT = np.exp(scores_BKMT - maximum_BKM1)
        self.total_BKM1 = self.total_BKM1 * rescale_BKM1 + weights_BKMT.sum(axis=-1, keepdims=True)
        self.output_BKME = self.output_BKME * rescale_BKM1 + weights_BKMT @ v_BTKE.transpose(0, 2, 1, 3)
        self.maximum_BKM1 = maximum_BKM1
        self.num_scores += int(seen_MT.sum())

    def finish(self, num_heads: int) -> tuple[Array, Array]:
        """The output ``(B, S, H, E)`` and the logarithm of each query's sum ``(B, K, M, 1)``."""
        log_sum_BKM1 = self.maximum_BKM1 + np.log(self.total_BKM1)
        return heads_of(self.output_BKME / self.total_BKM1, num_heads), log_sum_BKM1


def start_attention(q_BSHE: Array, positions_S: Integers, num_kv_heads: int) -> Attention:
    """Attention to no key yet."""
    queries_BKME = by_kv_head(q_BSHE, num_kv_heads)
    shape = (*queries_BKME.shape[:3], 1)
    return Attention(
        queries_BKME=queries_BKME,
        positions_M=np.tile(positions_S, q_BSHE.shape[2] // num_kv_heads),
        output_BKME=np.zeros_like(queries_BKME),
        maximum_BKM1=np.full(shape, -np.inf, dtype=q_BSHE.dtype),
        total_BKM1=np.zeros(shape, dtype=q_BSHE.dtype),
    )


@dataclass(slots=True, kw_only=True)
class AttentionGradient:
    """The backward of attention, one block of keys after the other."""

    queries_BKME: Array
    positions_M: Integers
    output_gradient_BKME: Array
    log_sum_BKM1: Array
    along_BKM1: Array
    """Each query's output times the gradient of that output, summed over the head's dimension."""
    query_gradient_BKME: Array

    def add(self, k_BTKE: Array, v_BTKE: Array, positions_T: Integers) -> tuple[Array, Array]:
        """Add to the gradient of the queries; the gradients of this block's keys and values."""
        seen_MT = self.positions_M[:, None] >= positions_T[None, :]
        if not seen_MT.any():
            return np.zeros_like(k_BTKE), np.zeros_like(v_BTKE)
        k_BKTE, v_BKTE = k_BTKE.transpose(0, 2, 1, 3), v_BTKE.transpose(0, 2, 1, 3)
        weights_BKMT = np.exp(_scores(self.queries_BKME, k_BTKE, seen_MT) - self.log_sum_BKM1)
        dv_BKTE = weights_BKMT.swapaxes(-1, -2) @ self.output_gradient_BKME
        dweights_BKMT = self.output_gradient_BKME @ v_BKTE.swapaxes(-1, -2)
        dscores_BKMT = weights_BKMT * (dweights_BKMT - self.along_BKM1) * _score_scale(k_BTKE)
        self.query_gradient_BKME = self.query_gradient_BKME + dscores_BKMT @ k_BKTE
        dk_BKTE = dscores_BKMT.swapaxes(-1, -2) @ self.queries_BKME
        return dk_BKTE.transpose(0, 2, 1, 3), dv_BKTE.transpose(0, 2, 1, 3)


def start_attention_gradient(
    do_BSHE: Array, q_BSHE: Array, output_BSHE: Array, log_sum_BKM1: Array, positions_S: Integers
) -> AttentionGradient:
    """The backward before the first block of keys."""
    num_kv_heads = log_sum_BKM1.shape[1]
    queries_BKME = by_kv_head(q_BSHE, num_kv_heads)
    along_BSH1 = (do_BSHE * output_BSHE).sum(axis=-1, keepdims=True)
    return AttentionGradient(
        queries_BKME=queries_BKME,
        positions_M=np.tile(positions_S, q_BSHE.shape[2] // num_kv_heads),
        output_gradient_BKME=by_kv_head(do_BSHE, num_kv_heads),
        log_sum_BKM1=log_sum_BKM1,
        along_BKM1=by_kv_head(along_BSH1, num_kv_heads),
        query_gradient_BKME=np.zeros_like(queries_BKME),
    )


def by_kv_head(x_BSHE: Array, num_kv_heads: int) -> Array:
    """Queries in rows under the key-value head that they share: ``(B, K, M, E)``."""
    batch, length, heads, width = x_BSHE.shape
    grouped = x_BSHE.reshape(batch, length, num_kv_heads, heads // num_kv_heads, width)
    return grouped.transpose(0, 2, 3, 1, 4).reshape(batch, num_kv_heads, -1, width)


def heads_of(x_BKME: Array, num_heads: int) -> Array:
    """The inverse of :func:`by_kv_head`."""
    batch, kv_heads, rows, width = x_BKME.shape
    length = rows * kv_heads // num_heads
    grouped = x_BKME.reshape(batch, kv_heads, num_heads // kv_heads, length, width)
    return np.ascontiguousarray(grouped.transpose(0, 3, 1, 2, 4).reshape(batch, length, num_heads, width))


def _score_scale(k_BTKE: Array) -> float:
    return float(k_BTKE.shape[-1] ** -0.5)


def _scores(queries_BKME: Array, k_BTKE: Array, seen_MT: Mask) -> Array:
    scores_BKMT = queries_BKME @ k_BTKE.transpose(0, 2, 3, 1) * _score_scale(k_BTKE)
    return np.where(seen_MT, scores_BKMT, -np.inf)
