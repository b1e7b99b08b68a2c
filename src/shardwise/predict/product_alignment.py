"""Rates of matmuls whose rows are not aligned for wide loads: sizes that are no multiple of eight.

Rows of 16-bit matrices begin on 16-byte boundaries when their width is a multiple of eight elements. Otherwise the
library falls back to kernels with narrow loads, and for odd widths to kernels that copy element by element. Tokens are
never the width of a row, so only output and input features decide, and tensor parallelism divides both.
"""

from dataclasses import dataclass

from shardwise.attention_kernels import DATACENTER_BLACKWELL
from shardwise.cluster import Dtype, Gpu
from shardwise.units import FlopPerSecond

ALIGNED_ELEMENTS: dict[Dtype, int] = {"bf16": 8, "fp16": 8, "tf32": 4, "fp32": 4}
"""Elements in 16 bytes, to which rows are aligned. Products of 8 bits must be aligned and are not listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnalignedShares:
    """Share of the dense peak that large unaligned products hold on H100."""

    even_fraction: float
    """Share with widths divisible by two or four."""
    odd_forward_fraction: float
    odd_backward_fraction: float


HOPPER_SHARES = UnalignedShares(even_fraction=0.265, odd_forward_fraction=0.112, odd_backward_fraction=0.147)
"""Medians of 36 products with 4,097 to 50,260 features (262, 111 and 147 of 989.5 TFLOP/s, where aligned ones hold 690;
``benchmarks/results/2026-11-28-h100-alignment.csv``)."""

RELATIVE_PEAKS = (
    *(("Volta", 0.25), ("Ampere GA100", 0.5), ("Hopper", 1.0)),
    *((arch, 2.0) for arch in DATACENTER_BLACKWELL),
    *(("Ada", 0.25), ("Blackwell GB202", 0.25)),
)
"""Dense 16-bit FLOP of one multiprocessor and clock over Hopper's 4,096 (1,024, 2,048, 4,096 and 8,192; Ada and GB202
1,024 as in workstations, of which GeForce has half). The kernels with narrow loads are those of Ampere on every later
part, so their rate per multiprocessor stays and their share falls."""
UNKNOWN_RELATIVE_PEAK = 0.5

FP32_UNIT_ARCH = "Ampere GA100"
FP32_UNIT_FRACTION = 0.626
"""Share of the FP32 peak at which unaligned batched products in 16 bits run there, matrix units idle: 12.21 of 19.5
TFLOP/s on A100 in bf16 (384 of 1,024 x 1,024 by 1,024 x 140, CUDA 11.6, where heads of 128 hold 132.7;
pytorch/pytorch#83272, 2022-08). Vanilla attention over 197 tokens takes longer in fp16 than in fp32
(facebookresearch/xformers#467, 2022-10). fp16 reached 53.9 in the first of these; with the libraries of half a year
before, whole steps with heads of 150 and 450 took the same in fp16 and bf16 (BLOOMT-001 to 006, on which this was
decided), so both are given the lower rate."""


def unaligned_share(gpu: Gpu, *, dtype: Dtype, out_features: int, in_features: int, is_forward: bool) -> float:
    """Share of the dense peak a product may hold given the widths of its matrices; 1 when they are aligned.

    >>> from shardwise.catalog import load_gpu
    >>> h100 = load_gpu("h100-sxm")
    >>> [unaligned_share(h100, dtype="bf16", out_features=n, in_features=4096, is_forward=True) for n in (50264, 50260)]
    [1.0, 0.265]
    """
    wanted = ALIGNED_ELEMENTS.get(dtype, 1)
    widths = (out_features, in_features)
    if not any(width % wanted for width in widths):
        return 1.0
    shares = HOPPER_SHARES
    odd = shares.odd_forward_fraction if is_forward else shares.odd_backward_fraction
    share = odd if any(width % 2 for width in widths) else shares.even_fraction
    relative = next((peak for arch, peak in RELATIVE_PEAKS if gpu.arch.startswith(arch)), UNKNOWN_RELATIVE_PEAK)
    return min(1.0, share / relative)


def unaligned_batched_flop_per_s(
    gpu: Gpu, *, dtype: Dtype, out_features: int, in_features: int, is_forward: bool
) -> FlopPerSecond:
    """Rate of batched products with unaligned rows, those of written-out attention.

    On H100 they hold 146 to 222 TFLOP/s with even widths and 100 to 124 with odd ones, within a third of what single
    products do (``2026-11-28-h100-alignment.csv``, heads of 225 to 452), so these stand for them.

    >>> from shardwise.catalog import load_gpu
    >>> facts = {"dtype": "bf16", "out_features": 140, "in_features": 1024, "is_forward": True}
    >>> [round(unaligned_batched_flop_per_s(load_gpu(part), **facts) / 1e12) for part in ("a100-sxm-80", "h100-sxm")]
    [12, 262]
    """
    share = unaligned_share(gpu, dtype=dtype, out_features=out_features, in_features=in_features, is_forward=is_forward)
    if gpu.arch.startswith(FP32_UNIT_ARCH) and dtype in ("bf16", "fp16"):
        return FP32_UNIT_FRACTION * gpu.peak_flop_per_s("fp32")
    return share * gpu.peak_flop_per_s(dtype)
