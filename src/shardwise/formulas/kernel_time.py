"""Why one kernel takes longer than its peak rate allows."""

from math import ceil
from statistics import NormalDist


def wave_efficiency(*, m: int, n: int, tile_m: int, tile_n: int, num_sms: int, groups: int = 1) -> float:
    """Useful share of a tiled matrix product's waves: ``M N / (Tm Tn SM ceil(tiles / SM))``.

    ``groups`` equal products of one kernel share its waves.

    Source: NVIDIA, Matrix Multiplication Background User's Guide, sections on tile and wave quantisation.
    Assumes: one tile per multiprocessor at a time, every tile as long as a full one.

    >>> round(wave_efficiency(m=8192, n=8192, tile_m=128, tile_n=256, num_sms=132), 3)
    0.97
    """
    tiles = groups * ceil(m / tile_m) * ceil(n / tile_n)
    return groups * m * n / (tile_m * tile_n * num_sms * ceil(tiles / num_sms))


def power_limited_ratio(*, power_w: float, reference_w: float, idle_w: float, exponent: float) -> float:
    """Clock, and with it the rate of products, under one power limit over that under another.

    ``((P - P_idle) / (P_ref - P_idle)) ** (1 / exponent)``: dynamic power is voltage squared times clock, and the
    voltage follows the clock, so the exponent lies near 3.

    Source: exponent 2.5 to 3.05 measured on one H100: bursts of 771 TFLOP/s draw 930 to 970 W, the same product held
        at 686 W settles at 668 TFLOP/s, idle 127 W (``benchmarks/results/2026-11-28-h100-power.csv``).
    Assumes: both limits bind, and memory draws the same under both.

    >>> round(power_limited_ratio(power_w=500, reference_w=700, idle_w=127, exponent=2.9), 3)
    0.862
    """
    dynamic = max(0.0, power_w - idle_w) / (reference_w - idle_w)
    return float(dynamic ** (1 / exponent))


def slowest_of_ratio(*, num_devices: int, spread_fraction: float) -> float:
    """Expected time of the slowest of equal devices over that of the mean one.

    ``1 + s q((N - 0.375) / (N + 0.25))`` with q the quantile of the normal distribution and s the standard deviation of
    one device's time.

    Source: Blom 1958, Statistical Estimates and Transformed Beta-Variables (expected extreme of N normal values).
    Assumes: devices differ for good and independently, and all wait for the slowest.

    >>> [round(slowest_of_ratio(num_devices=n, spread_fraction=0.01), 4) for n in (1, 8, 1024)]
    [1.0, 1.0143, 1.0323]
    """
    return 1 + spread_fraction * NormalDist().inv_cdf((num_devices - 0.375) / (num_devices + 0.25))


def saturation(*, x: float, half: float) -> float:
    """Achieved share of a rate that grows with size: ``x / (x + x_half)``.

    Source: fitted to published sweeps: GEMM by K on H800 (TileLang: half at K = 258, worst error 1.4 %), attention by
        sequence length (FlashAttention-2 and 3, cuDNN: worst error 8 %, mean below 3 %).
    Assumes: a fixed start-up cost next to work proportional to x.

    >>> round(saturation(x=8192, half=258), 3)
    0.969
    """
    return x / (x + half)
