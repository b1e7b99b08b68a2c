"""Shares of peak rates that kernels reach, from measurements of kernels (never from the training runs we report).

Matrix products: best shape found on each part (stas00/ml-engineering, compute/accelerator, "maximum achievable matmul
FLOPS"), times what the products of real layers reach of it on an H100. Attention: fits ``P s / (s + s_half)``.
Published figures are rows of the hardware catalogue (``catalog/hardware/data/achieved.csv`` and ``kernel_fits.csv``),
our own of ``catalog/kernels/h100-sxm.csv`` (``benchmarks/gpu_kernels.py``).
"""

from dataclasses import dataclass

from shardwise.cluster import Gpu
from shardwise.engine import EngineProfile
from shardwise.units import Seconds

DEFAULT_GEMM_FRACTION = 0.75
"""torch's own estimator uses this for every part (torch ``utils/_runtime_estimation.py``)."""
GEMM_K_HALF = 258
"""Inner length at which a 16-bit product reaches half its limit: H800, m = n = 8192 (TileLang sweep, error 1.4 %)."""
GEMM_K_HALF_FP8 = 446
GEMM_K_REFERENCE = 8192
"""The best-shape figures are taken as reached at this inner length."""

REAL_SHAPE_FRACTION = 0.92
"""What products of real layers reach of the best-shape figure after waves and inner length are counted: median of 240
products of Llama 8B to 405B, whole and divided, all three passes, on one H100 (their 10th and 90th percentile: 0.86
and 0.98)."""

ELEMENTWISE_FRACTION = 0.76
"""Copies, read and written: 77.5 % of the memory bandwidth on A100, 75.2 % on H100, 72.5 % on GB200 (p2p bandwidth
test); on our H100 a copy reached 84 %, a fused RMSNorm 71 %, SwiGLU 80 to 90 %."""
OPTIMIZER_FRACTION = 0.78
"""Fused AdamW in fp32 on one H100."""
FOREACH_OPTIMIZER_RATIO = 2.8
"""Time of torch's multi-tensor AdamW over the fused one, on one H100."""
EAGER_FLOOR_S = 10e-6
"""Shortest time between two kernels that Python issues one by one: 10.6 us measured for an in-place addition."""
COMPILED_FLOOR_S = 4e-6
"""The same for generated code without graphs. Low confidence: between 1.0 us in a graph and the eager 10.6 us."""


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
    # H100, causal, torch 2.11, 1,024 to 16,384 tokens: our fits, within 5 % of every reading. The published sweeps of
    # FlashAttention-2 are within 12 % of them (forward 308.0 and 349.2, both passes 293.4 and 333.8 TFLOP/s).
    AttentionRate(
        implementation="FlashAttention-2",
        arch="",
        head_dim=64,
        forward_fraction=0.293,
        forward_half=330,
        backward_fraction=0.270,
        backward_half=830,
    ),
    AttentionRate(
        implementation="FlashAttention-2",
        arch="",
        head_dim=128,
        forward_fraction=0.354,
        forward_half=420,
        backward_fraction=0.313,
        backward_half=850,
    ),
    AttentionRate(
        implementation="cuDNN",
        arch="",
        head_dim=64,
        forward_fraction=0.485,
        forward_half=390,
        backward_fraction=0.472,
        backward_half=1010,
    ),
    AttentionRate(
        implementation="cuDNN",
        arch="",
        head_dim=128,
        forward_fraction=0.637,
        forward_half=310,
        backward_fraction=0.576,
        backward_half=910,
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
    floor_s: Seconds
    """Shortest time of a kernel."""
    optimizer_ratio: float
    """Time of the engine's optimizer over a fused one."""
    is_measured: bool
    """False when no matrix product was published for the part and torch's flat share stands in."""


def kernel_rates(*, gpu: Gpu, profile: EngineProfile, head_dim: int, is_compiled: bool = True) -> KernelRates:
    """Rates of a part: its own measurements, else its architecture's, else a named default."""
    ceiling = _gemm_ceiling(gpu)
    fraction = REAL_SHAPE_FRACTION * ceiling.fraction if ceiling else DEFAULT_GEMM_FRACTION
    fp8 = REAL_SHAPE_FRACTION * ceiling.fp8_fraction if ceiling and ceiling.fp8_fraction else fraction
    return KernelRates(
        gemm_fraction=fraction,
        fp8_gemm_fraction=fp8,
        attention=_attention_rate(gpu, profile, head_dim),
        num_sms=gpu.sm_count,
        floor_s=COMPILED_FLOOR_S if is_compiled or profile.sharding == "megatron" else EAGER_FLOOR_S,
        optimizer_ratio=FOREACH_OPTIMIZER_RATIO if profile.has_foreach_optimizer else 1.0,
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
