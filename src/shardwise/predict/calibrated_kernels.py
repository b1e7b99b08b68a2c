"""What a calibration says of kernels: measured over catalogued time, between and beyond the points that were timed.

A time between points follows the logarithms of sizes; beyond them the catalogue's model holds, scaled by the nearest
points. What was not timed (a dtype, a kind of kernel) stays the catalogue's.
"""

from dataclasses import dataclass
from functools import cache
from heapq import nsmallest
from math import exp, log, log2

from shardwise.calibration import AttentionPoint, Calibration, TimedBytes
from shardwise.cluster import Dtype, Gpu
from shardwise.predict.product_rates import Product, ProductRates, product_rates
from shardwise.units import BytesPerSecond, Seconds

NEAREST = 6
"""Points that a ratio is the mean of, weighted by the inverse square of their distance in factors of two."""
SAME_POINT = 1e-4
"""Squared distance at which a point stands for itself."""
Position = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Ratios:
    """Logarithms of measured over modelled time at positions in factors of two."""

    points: tuple[tuple[Position, float], ...]

    def at(self, position: Position) -> float:
        """Measured over modelled time; 1 where nothing was timed."""
        if not self.points:
            return 1.0
        near = nsmallest(NEAREST, ((_squared_distance(place, position), ratio) for place, ratio in self.points))
        weights = [1 / (distance + SAME_POINT) for distance, _ in near]
        total = sum(weight * ratio for weight, (_, ratio) in zip(weights, near, strict=True))
        return exp(total / sum(weights))


def _squared_distance(one: Position, other: Position) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


@cache
def product_ratios(gpu: Gpu, calibration: Calibration, product_pass: str, family: str) -> Ratios:
    """Measured over catalogued times of the matrix products of one pass and width, no faster than long runs hold."""
    catalogued = product_rates(gpu)
    points = []
    for point in calibration.products:
        if point.product_pass == product_pass and point.dtype == family and gpu.peak_flop_per_s(_dtype(family)):
            product = Product(product_pass=product_pass, dtype=_dtype(family), m=point.m, n=point.n, k=point.k)
            held_s = max(point.duration_s, catalogued.shortest_held_s(product))
            points.append((product.position, log(held_s / catalogued.duration_s(product))))
    return Ratios(tuple(points))


def _dtype(family: str) -> Dtype:
    known: tuple[Dtype, ...] = ("fp32", "tf32", "bf16", "fp16", "fp8")
    return next(dtype for dtype in known if dtype == family)


def product_ratio(product: Product, *, gpu: Gpu, calibration: Calibration) -> float:
    """Measured over catalogued time of one product; grouped ones follow the plain ones of their sizes."""
    family = "bf16" if product.dtype == "fp16" else product.dtype
    return product_ratios(gpu, calibration, product.product_pass, family).at(product.position)


def calibrated_products(gpu: Gpu, calibration: Calibration | None) -> ProductRates:
    """The products of a part, as the calibration corrects them."""
    if calibration is None or not calibration.products:
        return product_rates(gpu)
    return _calibrated_products(gpu, calibration)


@cache
def _calibrated_products(gpu: Gpu, calibration: Calibration) -> ProductRates:
    return ProductRates(gpu, correction=lambda product: product_ratio(product, gpu=gpu, calibration=calibration))


def attention_position(*, seq_len: int, head_dim: int) -> Position:
    """Position of an attention core among those that were timed."""
    return log2(max(1, seq_len)), log2(max(1, head_dim))


def attention_flop(point: AttentionPoint) -> float:
    """FLOP of a causal forward: ``2 (d_qk + d_v)`` for each of half the pairs."""
    pairs = point.num_sequences * point.num_attention_heads * point.seq_len**2 / 2
    return 4.0 * pairs * point.head_dim


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """Bytes per second over sizes, the smallest first."""

    points: tuple[TimedBytes, ...]

    def duration_s(self, num_bytes: float) -> Seconds:
        """Seconds for so many bytes: interpolated in logarithms between timed sizes, beyond them at the rate of the
        nearest."""
        first, last = self.points[0], self.points[-1]
        if num_bytes <= first.num_bytes:
            return num_bytes / first.rate_bytes_per_s
        if num_bytes >= last.num_bytes:
            return num_bytes / last.rate_bytes_per_s
        index = next(index for index, point in enumerate(self.points) if point.num_bytes >= num_bytes)
        low, high = self.points[index - 1], self.points[index]
        share = log(num_bytes / low.num_bytes) / log(high.num_bytes / low.num_bytes)
        return exp((1 - share) * log(low.duration_s) + share * log(high.duration_s))

    @property
    def largest_bytes_per_s(self) -> BytesPerSecond:
        """Rate that the largest size reached."""
        return self.points[-1].rate_bytes_per_s


def measured_rate(points: tuple[TimedBytes, ...]) -> MeasuredRate | None:
    """The table of one kind of kernel; ``None`` when it was not timed."""
    return MeasuredRate(tuple(sorted(points, key=lambda point: point.num_bytes))) if points else None
