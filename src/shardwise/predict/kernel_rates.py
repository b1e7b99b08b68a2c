"""What kernels of each kind reach on one part, from measurements of kernels (never from the training runs we report).

Matrix products: :mod:`shardwise.predict.product_rates`. Attention: fits ``P s / (s + s_half)``. Published figures are
rows of the hardware catalogue (``catalog/hardware/data/achieved.csv`` and ``kernel_fits.csv``), our own of
``catalog/kernels/h100-sxm.csv`` and ``benchmarks/results/2026-11-2*-h100-*.csv``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from shardwise.calibration import Calibration
from shardwise.cluster import Gpu
from shardwise.engines.profile import EngineProfile
from shardwise.formulas.kernel_time import slowest_of_ratio
from shardwise.predict.calibrated_kernels import MeasuredRate, Ratios, calibrated_products
from shardwise.predict.product_rates import SUSTAINED_ATTENTION_RATIO, ProductRates, sustained_share
from shardwise.step.block_operations import HOST_CALLS
from shardwise.step.inventory import Operation
from shardwise.units import Seconds

ELEMENTWISE_FRACTION = 0.76
"""Copies, read and written: 77.5 % of the memory bandwidth on A100, 75.2 % on H100, 72.5 % on GB200 (p2p bandwidth
test); on our H100 a copy reached 84 %, a fused RMSNorm 71 %, SwiGLU 80 to 90 %."""
MEMORY_FRACTIONS = (("b200", 0.666),)
"""Parts with readings of their own: B200 by SimuMax's (``b200_bf16_ceperm.json``, bandwidth, default)."""
LOSS_FRACTIONS = (("Blackwell", 0.363),)
"""The same of cross-entropy in Transformer Engine's kernel: 4 bytes a logit forward and as many backward at 0.2795 of
8,000 GiB/s, and 30 us each, on B200 (SimuMax ``b200_bf16_ceperm.json``, ce_fusion, counted as in its
``test_ce_permute_efficiency.py``), over the 6 and 4 bytes counted here, for 4,096 tokens and 128,256 words. torch's
compiled loss on H100 holds what other elementwise kernels do."""
OPTIMIZER_FRACTION = 0.78
"""Fused AdamW in fp32 on one H100."""
FOREACH_OPTIMIZER_RATIO = 2.8
"""Time of torch's multi-tensor AdamW over the fused one, on one H100."""
KERNEL_FLOOR_S = 1e-6
"""Shortest time from one kernel to the next on the device: 200 additions in one graph, H100."""
ACCUMULATION_RATIO = 1.04
"""Weight gradients added in fp32 in place, as Megatron does, over plain ones: the limits of both in the tables of A100
(1.04) and B200 (1.06), and 1.01 to 1.05 of three products on H100 less the copy that torch adds
(``2026-11-28-h100-products.csv``). Tables that hold accumulated gradients contain it."""

HOST_FORWARD_S = 33e-6
HOST_BACKWARD_S = 40e-6
"""Host time per kernel that Python issues, median over three blocks with and without autocast (25 to 48 us forward, 26
to 43 backward; ``2026-11-28-h100-dispatch.csv``). One virtual machine, where a bare in-place addition takes 7 to 11 us;
hosts differ by a factor of two either way."""
HOST_PACES = (0.7, 1.45)
"""Fastest and slowest time per kernel of those blocks over the figures above: 25 and 26 us, 48 us."""
HOST_COMPILED_FORWARD_S = 60e-6
HOST_COMPILED_BACKWARD_S = 36e-6
"""The same for blocks compiled one by one: fewer kernels, but guards and wrappers around them (54 and 67 us forward, 39
and 33 backward; same file)."""


DEVICE_SPREAD_FRACTION = 0.013
"""Standard deviation of the speed of equal GPUs: they differ by 8 % within a cluster without outliers (Sinha et al.
2022, "Not All GPUs Are Created Equal", SC22, abstract), which is six deviations for a few hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRate:
    """Fused attention of one implementation: share of the 16-bit peak at long sequences, and half-way lengths."""

    implementation: str
    arch: str
    """The beginning of an architecture name; empty for H100, which also stands for architectures without rows."""
    head_dim: int
    forward_fraction: float
    forward_half: float
    backward_fraction: float
    backward_half: float


ATTENTION_RATES = (
    # A100, causal, forward and backward together: 176.1 and 194.0 of 312 TFLOP/s; divided between the passes as on A100
    # PCIe (SimuMax configs/system/a100_pcie.json, 32 and 64 heads of 128: forward at 1.16 times the rate of backward).
    AttentionRate(
        implementation="FlashAttention-2",
        arch="Ampere",
        head_dim=64,
        forward_fraction=0.628,
        forward_half=512,
        backward_fraction=0.542,
        backward_half=512,
    ),
    AttentionRate(
        implementation="FlashAttention-2",
        arch="Ampere",
        head_dim=128,
        forward_fraction=0.693,
        forward_half=490,
        backward_fraction=0.598,
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
    # B200, causal, 4,096 to 131,072 tokens, 32 heads or more (SimuMax b200_bf16_ceperm.json; its FLOP count both
    # halves): within 12 %, power settling at the longest.
    AttentionRate(
        implementation="cuDNN",
        arch="Blackwell",
        head_dim=128,
        forward_fraction=0.545,
        forward_half=1100,
        backward_fraction=0.44,
        backward_half=500,
    ),
    # Query and key heads of 192, value heads of 128.
    AttentionRate(
        implementation="cuDNN",
        arch="Blackwell",
        head_dim=192,
        forward_fraction=0.41,
        forward_half=100,
        backward_fraction=0.32,
        backward_half=50,
    ),
)

ATTENTION_KERNEL_HEADS = (32, 64, 96, 128, 192, 256)
"""Head sizes that fused kernels are compiled for; other heads are padded to the next (Dao-AILab/flash-attention
``csrc/flash_attn/src/static_switch.h``, ``HEADDIM_SWITCH``)."""

CUDNN_ARCHS = ("Hopper", "Blackwell")
ATTENTION_TILE_ROWS = 128
"""Queries of one head that one multiprocessor works on."""
ATTENTION_TAILS = (1.5, 0.9)
"""Rounds of such tiles lost at the end of a forward and of a backward: causal tiles differ in length. Sequences with
few heads on A100 (SimuMax; 4 to 64 heads of 4,096 tokens: 0.5 to 1.6 and 0.3 to 0.75) and H100 (8 to 64 heads: 1.2 to
2.3 and 0.4 to 1.2)."""
ATTENTION_REFERENCE_ROUNDS = 15.5
"""The fits were taken with 16,384 tokens and 32 heads on 132 multiprocessors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRates:
    """What one part reaches under one engine."""

    products: ProductRates
    attention: AttentionRate
    attention_limit_fraction: float
    """Share of the 16-bit peak that attention holds under the part's power limit."""
    accumulation_ratio: float
    """Time of weight gradients over those in the table."""
    memory_fraction: float
    """Share of the memory bandwidth that elementwise kernels reach."""
    loss_fraction: float
    """The same of the cross-entropy."""
    num_sms: int
    floor_s: Seconds
    """Shortest time of a kernel on the device."""
    host_forward_s: Seconds
    """Host time per kernel issued."""
    host_backward_s: Seconds
    host_recompute_s: Seconds
    call_forward_s: Seconds
    """Host time of what Python does around kernels, per kernel that it is counted as; compiling leaves it."""
    call_backward_s: Seconds
    optimizer_ratio: float
    """Time of the engine's optimizer over a fused one."""
    slowest_ratio: float
    """Time of the slowest GPU of the job over that of a typical one."""
    is_measured: bool
    """False when no matrix product was published for the part and torch's flat share stands in."""
    moves: MeasuredRate | None = None
    """Elementwise kernels as a calibration timed them."""
    updates: MeasuredRate | None = None
    """The optimizer's kernels likewise."""
    attention_forward: Ratios | None = None
    """Measured over catalogued time of attention cores, by length and head size."""
    attention_backward: Ratios | None = None
    dispatch_s: Seconds = 0.0
    """What every kernel takes besides its work where the processors that compute also issue it."""
    dispatch_call_s: Seconds = 0.0
    """The same of a call around kernels, where its Python is as much in the way as kernels are."""

    is_blocking: bool = False
    """Whether the host waits for the end of every kernel before it issues the next."""

    def dispatched_s(self, operation: Operation) -> Seconds:
        """What one execution of an operation takes besides its work: processors issue it, or a host that waits does."""
        is_call = operation.name.startswith(HOST_CALLS)
        own_s = operation.num_kernels * (self.dispatch_call_s if is_call else self.dispatch_s)
        return own_s + (self._issued_once_s(operation) if self.is_blocking else 0.0)

    def issue_s(self, operation: Operation) -> Seconds:
        """Host time beside the device of all executions of an operation."""
        return 0.0 if self.is_blocking else operation.count * self._issued_once_s(operation)

    def _issued_once_s(self, operation: Operation) -> Seconds:
        """Host time of one execution, but for the optimizer, whose kernels are few."""
        if operation.phase == "optimizer":
            return 0.0
        backward, recompute = operation.phase == "backward", operation.phase == "recompute"
        if operation.name.startswith(HOST_CALLS):
            per_kernel_s = self.call_backward_s if backward else self.call_forward_s
        else:
            per_kernel_s = (
                self.host_backward_s if backward else self.host_recompute_s if recompute else self.host_forward_s
            )
        return operation.num_kernels * per_kernel_s


@cache
def kernel_rates(
    *,
    gpu: Gpu,
    profile: EngineProfile,
    head_dim: int,
    is_compiled: bool = False,
    is_foreach: bool | None = None,
    num_gpus: int = 1,
    calibration: Calibration | None = None,
) -> KernelRates:
    """Rates of a part: the machine's own, else the part's, else its architecture's, else a named default.

    All of ``num_gpus`` wait for the slowest of them, whose times the prediction follows. ``is_foreach`` is how the
    optimizer updates, ``None`` as the engine does.
    """
    products = calibrated_products(gpu, calibration)
    is_megatron = profile.sharding == "megatron"
    is_compiled = is_compiled and not is_megatron
    accumulates = is_megatron and not products.has_accumulated_gradients
    memory_fraction = next((share for part, share in MEMORY_FRACTIONS if gpu.id.startswith(part)), ELEMENTWISE_FRACTION)
    updates_foreach = profile.has_foreach_optimizer if is_foreach is None else is_foreach
    own_loss = next((share for arch, share in LOSS_FRACTIONS if gpu.arch.startswith(arch)), memory_fraction)
    return KernelRates(
        products=products,
        attention=attention_rate(gpu, profile, head_dim),
        attention_limit_fraction=SUSTAINED_ATTENTION_RATIO * sustained_share(gpu),
        accumulation_ratio=ACCUMULATION_RATIO if accumulates else 1.0,
        memory_fraction=memory_fraction,
        loss_fraction=own_loss if is_megatron else memory_fraction,
        num_sms=gpu.sm_count,
        floor_s=KERNEL_FLOOR_S,
        host_forward_s=HOST_COMPILED_FORWARD_S if is_compiled else HOST_FORWARD_S,
        host_backward_s=HOST_COMPILED_BACKWARD_S if is_compiled else HOST_BACKWARD_S,
        host_recompute_s=HOST_COMPILED_BACKWARD_S if is_compiled else HOST_FORWARD_S,
        call_forward_s=HOST_FORWARD_S,
        call_backward_s=HOST_BACKWARD_S,
        optimizer_ratio=FOREACH_OPTIMIZER_RATIO if updates_foreach else 1.0,
        slowest_ratio=slowest_of_ratio(num_devices=num_gpus, spread_fraction=DEVICE_SPREAD_FRACTION),
        is_measured=products.is_measured,
    )


def is_attention_borrowed(*, gpu: Gpu, profile: EngineProfile) -> bool:
    """Whether the shares of the peak that fused attention reached on H100 stand for another architecture."""
    return not _own_attention_rates(gpu, profile) and not gpu.arch.startswith("Hopper")


def attention_rate(gpu: Gpu, profile: EngineProfile, head_dim: int) -> AttentionRate:
    """How fast an engine's fused attention is: on this architecture where it was timed, else by a named default."""
    rows = [row for row in ATTENTION_RATES if row.implementation == _attention_implementation(gpu, profile)]
    candidates = _own_attention_rates(gpu, profile) or [row for row in rows if not row.arch]
    return _at_head_dim(sorted(candidates, key=lambda row: row.head_dim), head_dim)


def _attention_implementation(gpu: Gpu, profile: EngineProfile) -> str:
    """Transformer Engine and our trainer run cuDNN's kernels where they exist; torch by itself flash attention 2."""
    return "cuDNN" if profile.prefers_cudnn_attention and gpu.arch.startswith(CUDNN_ARCHS) else "FlashAttention-2"


def _own_attention_rates(gpu: Gpu, profile: EngineProfile) -> list[AttentionRate]:
    """Rates measured on the part's own architecture."""
    implementation = _attention_implementation(gpu, profile)
    rows = (row for row in ATTENTION_RATES if row.arch and gpu.arch.startswith(row.arch))
    return [row for row in rows if row.implementation == implementation]


def _at_head_dim(rows: Sequence[AttentionRate], head_dim: int) -> AttentionRate:
    """The rate between the two nearest sizes of heads, less what a kernel of the next larger size computes in vain."""
    kernel = next((size for size in ATTENTION_KERNEL_HEADS if size >= head_dim), head_dim)
    below = max((row for row in rows if row.head_dim <= kernel), key=lambda row: row.head_dim, default=rows[0])
    above = min((row for row in rows if row.head_dim >= kernel), key=lambda row: row.head_dim, default=rows[-1])
    weight = (kernel - below.head_dim) / max(1, above.head_dim - below.head_dim)
    useful = head_dim / kernel

    def between(one: float, other: float) -> float:
        return one + weight * (other - one)

    return replace(
        below,
        head_dim=head_dim,
        forward_fraction=useful * between(below.forward_fraction, above.forward_fraction),
        forward_half=between(below.forward_half, above.forward_half),
        backward_fraction=useful * between(below.backward_fraction, above.backward_fraction),
        backward_half=between(below.backward_half, above.backward_half),
    )
