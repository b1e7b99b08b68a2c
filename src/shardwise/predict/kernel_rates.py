"""Shares of peak rates that kernels reach, from published kernel measurements (never from the training runs we report).

Matrix products: best shape found on each part (stas00/ml-engineering, compute/accelerator, "maximum achievable matmul
FLOPS"). Attention: fits ``P s / (s + s_half)`` to the flash-attention repository's and paper's sweeps. All are rows of
the hardware catalogue (``catalog/hardware/data/achieved.csv`` and ``kernel_fits.csv``).
"""

from dataclasses import dataclass

from shardwise.cluster import Gpu
from shardwise.engine import EngineProfile

DEFAULT_GEMM_FRACTION = 0.75
"""torch's own estimator uses this for every part (torch ``utils/_runtime_estimation.py``)."""
GEMM_K_HALF = 258
"""Inner length at which a 16-bit product reaches half its limit: H800, m = n = 8192 (TileLang sweep, error 1.4 %)."""
GEMM_K_HALF_FP8 = 446
GEMM_K_REFERENCE = 8192
"""The best-shape figures are taken as reached at this inner length."""

ELEMENTWISE_FRACTION = 0.76
"""Copies, read and written: 77.5 % of the memory bandwidth on A100, 75.2 % on H100, 72.5 % on GB200 (p2p bandwidth
test); norms and activations stream like copies."""
OPTIMIZER_FRACTION = 0.85
"""Fused AdamW reads more than it writes: between copies (0.76) and reductions (0.95 to 0.97 on H100)."""
KERNEL_FLOOR_S = 4e-6
"""Shortest time between two kernels of one stream. Low confidence: 4 to 8 microseconds are commonly reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCeiling:
    """Best share of the dense peak a matrix product was measured to reach."""

    part: str
    """Catalogue id, or the beginning of an architecture name."""
    fraction: float
    fp8_fraction: float = 0.0
    """0 when not measured."""


GEMM_CEILINGS = (
    GemmCeiling(part="a100-sxm-80", fraction=0.869),
    GemmCeiling(part="a100-pcie-80", fraction=0.811),
    GemmCeiling(part="h100-sxm", fraction=0.803, fp8_fraction=0.709),
    GemmCeiling(part="h200-sxm", fraction=0.803, fp8_fraction=0.734),
    GemmCeiling(part="gh200-96", fraction=0.837, fp8_fraction=0.776),
    GemmCeiling(part="b200-sxm", fraction=0.776, fp8_fraction=0.763),
    GemmCeiling(part="b300-sxm", fraction=0.786, fp8_fraction=0.745),
    GemmCeiling(part="gb200", fraction=0.729, fp8_fraction=0.723),
    GemmCeiling(part="mi300x", fraction=0.511),
    GemmCeiling(part="mi325x", fraction=0.6),
    GemmCeiling(part="mi355x", fraction=0.622),
    GemmCeiling(part="gaudi2", fraction=0.969, fp8_fraction=0.955),
    GemmCeiling(part="gaudi3", fraction=0.741, fp8_fraction=0.769),
    # A whole architecture takes the figure of its measured part.
    GemmCeiling(part="Ampere GA100", fraction=0.869),
    GemmCeiling(part="Hopper", fraction=0.803, fp8_fraction=0.709),
    GemmCeiling(part="Blackwell Ultra", fraction=0.786, fp8_fraction=0.745),
    GemmCeiling(part="Blackwell GB100", fraction=0.776, fp8_fraction=0.763),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRate:
    """Fused attention of one implementation: share of the 16-bit peak at long sequences, and half-way lengths."""

    implementation: str
    arch: str
    """The beginning of an architecture name; empty for any."""
    head_dim: int
    forward_fraction: float
    forward_half: float
    backward_fraction: float
    backward_half: float


ATTENTION_RATES = (
    # A100, causal, forward and backward together: 176.1 and 194.0 of 312 TFLOP/s.
    AttentionRate(
        implementation="FlashAttention-2",
        arch="Ampere",
        head_dim=64,
        forward_fraction=0.564,
        forward_half=512,
        backward_fraction=0.564,
        backward_half=512,
    ),
    AttentionRate(
        implementation="FlashAttention-2",
        arch="Ampere",
        head_dim=128,
        forward_fraction=0.622,
        forward_half=490,
        backward_fraction=0.622,
        backward_half=490,
    ),
    # H100, causal: forward 308.0 and 349.2; backward from the fit of both passes (293.4 and 333.8): 288 and 328.
    AttentionRate(
        implementation="FlashAttention-2",
        arch="",
        head_dim=64,
        forward_fraction=0.311,
        forward_half=362,
        backward_fraction=0.291,
        backward_half=626,
    ),
    AttentionRate(
        implementation="FlashAttention-2",
        arch="",
        head_dim=128,
        forward_fraction=0.353,
        forward_half=395,
        backward_fraction=0.331,
        backward_half=588,
    ),
    # H100, cuDNN: forward 554.8 causal at 128; backward 449.4 and 542.3, not causal, its half-way length times the
    # 2.15 by which causality lengthens FlashAttention-2's; forward at 64 scaled like the backward.
    AttentionRate(
        implementation="cuDNN",
        arch="",
        head_dim=64,
        forward_fraction=0.465,
        forward_half=362,
        backward_fraction=0.454,
        backward_half=707,
    ),
    AttentionRate(
        implementation="cuDNN",
        arch="",
        head_dim=128,
        forward_fraction=0.561,
        forward_half=362,
        backward_fraction=0.548,
        backward_half=813,
    ),
)

CUDNN_ARCHS = ("Hopper", "Blackwell")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRates:
    """What one part reaches under one engine."""

    gemm_fraction: float
    fp8_gemm_fraction: float
    attention: AttentionRate
    num_sms: int
    is_measured: bool
    """False when no matrix product was published for the part and torch's flat share stands in."""


def kernel_rates(*, gpu: Gpu, profile: EngineProfile, head_dim: int) -> KernelRates:
    """Rates of a part: its own measurements, else its architecture's, else a named default."""
    ceiling = _gemm_ceiling(gpu)
    fraction = ceiling.fraction if ceiling else DEFAULT_GEMM_FRACTION
    fp8 = ceiling.fp8_fraction if ceiling and ceiling.fp8_fraction else fraction
    return KernelRates(
        gemm_fraction=fraction,
        fp8_gemm_fraction=fp8,
        attention=_attention_rate(gpu, profile, head_dim),
        num_sms=gpu.sm_count,
        is_measured=ceiling is not None,
    )


def _gemm_ceiling(gpu: Gpu) -> GemmCeiling | None:
    exact = next((row for row in GEMM_CEILINGS if row.part == gpu.id), None)
    return exact or next((row for row in GEMM_CEILINGS if gpu.arch.startswith(row.part)), None)


def _attention_rate(gpu: Gpu, profile: EngineProfile, head_dim: int) -> AttentionRate:
    """Transformer Engine runs cuDNN's kernels where they exist; torch's flash attention is version 2 elsewhere."""
    uses_cudnn = profile.sharding == "megatron" and gpu.arch.startswith(CUDNN_ARCHS)
    implementation = "cuDNN" if uses_cudnn else "FlashAttention-2"
    rows = [row for row in ATTENTION_RATES if row.implementation == implementation]
    own = [row for row in rows if row.arch and gpu.arch.startswith(row.arch)]
    candidates = own or [row for row in rows if not row.arch]
    return min(candidates, key=lambda row: abs(row.head_dim - head_dim))
