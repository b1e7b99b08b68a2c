"""What kernels of each kind reach on one part, from measurements of kernels (never from the training runs we report).

Matrix products: :mod:`shardwise.predict.product_rates`. Attention: fits ``P s / (s + s_half)``. Published figures are
rows of the hardware catalogue (``catalog/hardware/data/achieved.csv`` and ``kernel_fits.csv``), our own of
``catalog/kernels/h100-sxm.csv`` and ``benchmarks/results/2026-11-2*-h100-*.csv``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from shardwise.attention_kernels import DATACENTER_BLACKWELL, AttentionKernel
from shardwise.calibration import Calibration
from shardwise.cluster import Gpu
from shardwise.engines.profile import EngineProfile
from shardwise.formulas.kernel_time import slowest_of_ratio
from shardwise.predict.calibrated_kernels import MeasuredRate, Ratios, calibrated_products
from shardwise.predict.product_rates import SUSTAINED_ATTENTION_RATIO, ProductRates, sustained_share
from shardwise.step.block_operations import HOST_CALLS
from shardwise.step.inventory import Operation
from shardwise.units import FlopPerSecond, Seconds

ELEMENTWISE_FRACTION = 0.76
"""Copies, read and written: 77.5 % of the memory bandwidth on A100, 75.2 % on H100, 72.5 % on GB200 (p2p bandwidth
test); on our H100 a copy reached 84 %, a fused RMSNorm 71 %, SwiGLU 80 to 90 %."""
MEMORY_FRACTIONS = (("b200", 0.666),)
"""Parts with readings of their own: B200 by SimuMax's (``b200_bf16_ceperm.json``, bandwidth, default)."""
LOSS_FRACTIONS = tuple((arch, 0.363) for arch in DATACENTER_BLACKWELL)
"""Share of the memory bandwidth that cross-entropy reaches, by GPU architecture. Transformer Engine's kernel moves 4
bytes a logit forward and as many backward at 0.2795 of 8,000 GiB/s, and 30 us each, on B200 (SimuMax
``b200_bf16_ceperm.json``, ce_fusion, counted as in its ``test_ce_permute_efficiency.py``), over the 6 and 4 bytes
counted here, for 4,096 tokens and 128,256 words. torch's compiled loss on H100 reaches what other elementwise kernels
do."""
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
TILE_SCALED_RATIOS = (1.12, 1.42)
"""Time of 8-bit products that scale tiles of 128 numbers over that of products with one scale, forward with input
gradients, and weight gradients, both of whose sides have scales along the sum: on H800 DualPipe's trace (see
:mod:`shardwise.predict.concurrency`) takes 18.8 and 27.5 ms for those of four blocks of DeepSeek-V3 with 4,096 tokens,
on 112 multiprocessors (15.9 and 23.3 of all), where single scales are predicted to take 14.3 and 16.4. Grouped forwards
and input gradients take what is predicted. That training's bill is no evidence therefore (``cost_facts.csv``)."""

HOST_FORWARD_S = 33e-6
HOST_BACKWARD_S = 40e-6
"""Host time per kernel that Python issues, median over three blocks with and without autocast (25 to 48 us forward, 26
to 43 backward; ``2026-11-28-h100-dispatch.csv``). One virtual machine, where a bare in-place addition takes 7 to 11 us;
hosts differ by a factor of two either way."""
HOST_PACES = (0.44, 1.45)
"""Time per kernel on a fast and on a slow host over the figures above. The slowest of those blocks took 48 us. A host
that is no virtual machine issues in half the time: a bare in-place addition in 4 to 5 us instead of 7 to 11:
4 over 9 at the fastest."""
HOST_COMPILED_FORWARD_S = 60e-6
HOST_COMPILED_BACKWARD_S = 36e-6
"""Host time per kernel of blocks compiled one by one: fewer kernels, but guards and wrappers around them (54 and 67 us
forward, 39 and 33 backward; same file)."""
GRACE_HOST_RATIO = 1.34
"""Time of a Grace CPU per kernel over that of the hosts of H100: median of 77 of Megatron-LM's nightly runs of small
models on both, 8 GPUs each (NVIDIA/Megatron-LM@d98e8a6 ``tests/functional_tests/test_cases/gpt``, 2026-08; middle half
1.0 to 1.54). A linear module takes 2.5 to 2.75 times as long there (NVIDIA/TransformerEngine#2053, 2025-08)."""


DEVICE_SPREAD_FRACTION = 0.013
"""Standard deviation of the speed of equal GPUs: they differ by 8 % within a cluster without outliers (Sinha et al.
2022, "Not All GPUs Are Created Equal", SC22, abstract), which is six deviations for a few hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRate:
    """One kernel of fused attention: share of the 16-bit peak at long sequences, and half-way lengths in tokens."""

    kernel: AttentionKernel
    archs: tuple[str, ...] = ()
    """Beginnings of names of architectures; empty for H100, which also stands for architectures without rows."""
    head_dim: int
    forward_fraction: float
    forward_half: float
    backward_fraction: float
    backward_half: float


def _rate(
    kernel: AttentionKernel, head_dim: int, forward: tuple[float, float], backward: tuple[float, float], *archs: str
) -> AttentionRate:
    return AttentionRate(
        kernel=kernel,
        archs=archs,
        head_dim=head_dim,
        forward_fraction=forward[0],
        forward_half=forward[1],
        backward_fraction=backward[0],
        backward_half=backward[1],
    )


ATTENTION_RATES = (
    # A100, causal, forward and backward together: 176.1 and 194.0 of 312 TFLOP/s; divided between the passes as on A100
    # PCIe (SimuMax configs/system/a100_pcie.json, 32 and 64 heads of 128: forward at 1.16 times the rate of backward).
    _rate("fa2", 64, (0.628, 512), (0.542, 512), "Ampere"),
    _rate("fa2", 128, (0.693, 490), (0.598, 490), "Ampere"),
    # H100, causal, torch 2.11, 1,024 to 16,384 tokens: our fits, within 5 % of every reading. The published sweeps of
    # FlashAttention-2 are within 12 % of them (forward 308.0 and 349.2, both passes 293.4 and 333.8 TFLOP/s).
    _rate("fa2", 64, (0.293, 330), (0.270, 830)),
    _rate("fa2", 128, (0.354, 420), (0.313, 850)),
    _rate("cudnn", 64, (0.485, 390), (0.472, 1010)),
    _rate("cudnn", 128, (0.637, 310), (0.576, 910)),
    # FlashAttention-3 on H100: forward causal as in kernel_fits.csv (496.2, 642.7 and 675.4 TFLOP/s, 2026-11); backward
    # was published without a mask (495.6 and 587.5 TFLOP/s, 402 and 412 tokens, 2024-07), whose half-way lengths grow
    # 2.4 to 3.3 times under a causal mask with the two kernels above. Heads of 256 are taken to go backward as 128 do.
    _rate("fa3", 64, (0.501, 783), (0.501, 1250)),
    _rate("fa3", 128, (0.650, 554), (0.594, 1150)),
    _rate("fa3", 256, (0.683, 614), (0.594, 1150)),
    # B200, causal, 4,096 to 131,072 tokens, 32 heads or more (SimuMax b200_bf16_ceperm.json; its FLOP count both
    # halves): within 12 %, power settling at the longest. The second has value heads of 128.
    _rate("cudnn", 128, (0.545, 1100), (0.44, 500), *DATACENTER_BLACKWELL),
    _rate("cudnn", 192, (0.41, 100), (0.32, 50), *DATACENTER_BLACKWELL),
    # B200: 1,418 TFLOP/s forward and 1,209 backward with 8,192 tokens and a causal mask (2026-02,
    # Dao-AILab/flash-attention#2280), half-way lengths as cuDNN's, which makes the paper's 1,613 forward
    # (arXiv:2603.05451). Forward with heads of 64 is a fit of five lengths, within 2 % (of 2,500 TFLOP/s,
    # Dao-AILab/flash-attention#2605), backward is scaled as forward.
    _rate("fa4", 64, (0.524, 1875), (0.42, 1875), *DATACENTER_BLACKWELL),
    _rate("fa4", 128, (0.715, 1100), (0.57, 500), *DATACENTER_BLACKWELL),
    # The same part: 362 TFLOP/s forward (meta-pytorch/tritonbench#171, 2025-03; Dao-AILab/flash-attention#1589: 379 and
    # 334 with heads of 64), without a mask; what the mask and backward with heads of 128 change is H100's.
    _rate("fa2", 64, (0.158, 330), (0.135, 830), *DATACENTER_BLACKWELL),
    _rate("fa2", 128, (0.150, 420), (0.156, 850), *DATACENTER_BLACKWELL),
)


WARP_WIDE_PRODUCTS = ("Volta", "Turing", "Ada", "Blackwell GB202")
"""Architectures without figures whose matrix units one warp keeps busy, as on A100. On Hopper they want four warps,
which neither FlashAttention-2 nor the memory-efficient kernel gives them: it reaches 35 % of the peak there, 69 % on
A100. GeForce parts, whose peak is halved, reach more: 92 % forward and 60 % backward on RTX 4090 with 2,048 tokens
(apache/tvm ``tl_doc/flash_perf.md``, CUDA 12.2), 89 % forward without a mask on RTX 5090 at 400 W
(gau-nernst/learn-cuda@e83c256 ``07_attention``, 2025)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRuleRate:
    """Time of the gated delta rule's kernels in one pass: seconds a token of a sequence, and a rate for its FLOP."""

    token_s: Seconds
    """Seconds each token adds whatever the number of heads: the chunks of a sequence follow one another."""
    flop_per_s: FlopPerSecond
    """The rate of one pass, counted as nine FLOP a token, channel and state forward and twice as many backward."""


DELTA_RULE_FORWARD = DeltaRuleRate(token_s=21e-9, flop_per_s=121e12)
DELTA_RULE_BACKWARD = DeltaRuleRate(token_s=59e-9, flop_per_s=81e12)
"""Fitted to flash-linear-attention 0.5.1 on H200, states of 128 x 128: forward 0.23, 0.33, 0.47, 0.67 and 0.81 ms for
8,192 tokens and 8, 16, 32, 48 and 64 heads, backward 0.61, 0.72, 0.96 and 1.44 for 4 to 32; all within 9 %. GB200 is
7 % faster at best, so neither bandwidth nor peak decides, and other parts are given the same (QwenLM/FlashQLA@6e5d2ea
``benchmark/benchmark_results_H200.txt`` and ``_GB200.txt``, 2026-07). FlashQLA's own kernels take half as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledAttention:
    """A kernel without figures of its own, at a share of the rates of another one on the same part."""

    kernel: AttentionKernel
    archs: tuple[str, ...] = ()
    """Beginnings of names of architectures; empty for all."""
    of: AttentionKernel
    forward_ratio: float = 1.0
    backward_ratio: float = 1.0
    source: str


SCALED_ATTENTION = (
    ScaledAttention(
        kernel="cudnn",
        archs=("Ampere GA100",),
        of="fa2",
        forward_ratio=0.99,
        backward_ratio=0.84,
        source="pytorch/pytorch#192799, 2026-08",
    ),
    ScaledAttention(
        kernel="cudnn",
        archs=("Ampere", "Ada", "Blackwell GB202"),
        of="fa2",
        source="huggingface/transformers#48163, 2026-08; 1.09 times forward on RTX 5090, gau-nernst/learn-cuda@e83c256",
    ),
    ScaledAttention(kernel="fa4", archs=("Hopper",), of="fa3", source="no figures"),
    ScaledAttention(
        kernel="fa1",
        of="fa2",
        forward_ratio=0.55,
        backward_ratio=0.48,
        source="on A100, arXiv:2307.08691 sections 1 and 4.1, 2023-07",
    ),
    ScaledAttention(
        kernel="efficient",
        archs=("CDNA",),
        of="fa2",
        source="one backend on ROCm, pytorch/pytorch@001f694 sdp_utils.cpp",
    ),
    ScaledAttention(
        kernel="efficient",
        of="fa2",
        forward_ratio=0.70,
        backward_ratio=0.49,
        source="xformers in Dao-AILab/flash-attention#416, 2023",
    ),
    # The same source puts it at 85 and 76 % of FlashAttention-3, which by our rows would be 1.5 times as fast.
    ScaledAttention(
        kernel="flex",
        archs=("Hopper",),
        of="fa2",
        forward_ratio=1.25,
        backward_ratio=1.03,
        source="on H100, pytorch/pytorch.github.io@5b5db1e _posts/2025-03-16-pytorch-at-gtc.md",
    ),
    ScaledAttention(
        kernel="flex",
        of="fa2",
        forward_ratio=0.90,
        backward_ratio=0.85,
        source="on A100, pytorch.org/blog/flexattention, 2024-08-07",
    ),
)

ATTENTION_KERNEL_HEADS = (32, 64, 96, 128, 192, 256)
"""Head sizes that fused kernels are compiled for; other heads are padded to the next (Dao-AILab/flash-attention
``csrc/flash_attn/src/static_switch.h``, ``HEADDIM_SWITCH``)."""

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
    """Rates of kernels on one GPU type under one engine, and host time per kernel."""

    products: ProductRates
    attention: AttentionRate
    attention_limit_fraction: float
    """Share of the 16-bit peak that attention holds under the part's power limit."""
    accumulation_ratio: float
    """Time of weight gradients over those in the table."""
    tile_scaled_ratios: tuple[float, float]
    """Time of 8-bit products over those in the table: single ones, and weight gradients."""
    memory_fraction: float
    """Share of the memory bandwidth that elementwise kernels reach."""
    loss_fraction: float
    """Share of the memory bandwidth that the cross-entropy reaches."""
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
    """Seconds every kernel takes besides its work where the CPUs that compute also issue it."""
    dispatch_call_s: Seconds = 0.0
    """Seconds added for each kernel that a call around kernels counts as, where its Python runs on the same CPUs."""

    is_blocking: bool = False
    """Whether the host waits for the end of every kernel before it issues the next."""

    def dispatched_s(self, operation: Operation) -> Seconds:
        """Seconds that issuing adds to one execution of an operation: by CPUs that compute, or a host that waits."""
        is_call = operation.name.startswith(HOST_CALLS)
        own_s = operation.num_kernels * (self.dispatch_call_s if is_call else self.dispatch_s)
        return own_s + self.blocking_s(operation)

    def blocking_s(self, operation: Operation) -> Seconds:
        """Host time of one execution that its kernels do not run beside, since the host waits for each."""
        return self._issued_once_s(operation) if self.is_blocking else 0.0

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
    attention: AttentionKernel = "fa2",
    is_compiled: bool = False,
    is_foreach: bool | None = None,
    num_gpus: int = 1,
    calibration: Calibration | None = None,
) -> KernelRates:
    """Rates of a part: the machine's own, else the part's, else its architecture's, else a named default.

    All of ``num_gpus`` wait for the slowest of them, whose times the prediction follows. ``attention`` is the kernel of
    fused attention and ``is_foreach`` how the optimizer updates, ``None`` as the engine does.
    """
    products = calibrated_products(gpu, calibration)
    is_megatron = profile.sharding == "megatron"
    is_compiled = is_compiled and not is_megatron
    accumulates = is_megatron and not products.has_accumulated_gradients
    memory_fraction = next((share for part, share in MEMORY_FRACTIONS if gpu.id.startswith(part)), ELEMENTWISE_FRACTION)
    updates_foreach = profile.has_foreach_optimizer if is_foreach is None else is_foreach
    pace = GRACE_HOST_RATIO if gpu.has_coherent_host else 1.0
    own_loss = next((share for arch, share in LOSS_FRACTIONS if gpu.arch.startswith(arch)), memory_fraction)
    return KernelRates(
        products=products,
        attention=attention_rate(gpu.arch, attention, head_dim),
        attention_limit_fraction=SUSTAINED_ATTENTION_RATIO * sustained_share(gpu),
        accumulation_ratio=ACCUMULATION_RATIO if accumulates else 1.0,
        tile_scaled_ratios=TILE_SCALED_RATIOS if profile.scales_tiles else (1.0, 1.0),
        memory_fraction=memory_fraction,
        loss_fraction=own_loss if is_megatron else memory_fraction,
        num_sms=gpu.sm_count,
        floor_s=KERNEL_FLOOR_S,
        host_forward_s=pace * (HOST_COMPILED_FORWARD_S if is_compiled else HOST_FORWARD_S),
        host_backward_s=pace * (HOST_COMPILED_BACKWARD_S if is_compiled else HOST_BACKWARD_S),
        host_recompute_s=pace * (HOST_COMPILED_BACKWARD_S if is_compiled else HOST_FORWARD_S),
        call_forward_s=pace * HOST_FORWARD_S,
        call_backward_s=pace * HOST_BACKWARD_S,
        optimizer_ratio=FOREACH_OPTIMIZER_RATIO if updates_foreach else 1.0,
        slowest_ratio=slowest_of_ratio(num_devices=num_gpus, spread_fraction=DEVICE_SPREAD_FRACTION),
        is_measured=products.is_measured,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionOrigin:
    """Where the rates of a kernel on an architecture come from."""

    rows: tuple[AttentionRate, ...]
    borrowed_from: str = ""
    """The part whose shares of the peak stand for those of another architecture; empty where none are borrowed."""
    scaled: ScaledAttention | None = None
    """How the rows of another kernel are scaled; ``None`` where the rows are the kernel's own."""


@cache
def attention_origin(kernel: AttentionKernel, arch: str) -> AttentionOrigin:
    """The kernel's own figures there, else those of a kernel that it is scaled from, else A100's or H100's."""
    rows = tuple(row for row in ATTENTION_RATES if row.kernel == kernel)
    own = tuple(row for row in rows if row.archs and arch.startswith(row.archs))
    of_hopper = tuple(row for row in rows if not row.archs)
    if own or (of_hopper and arch.startswith("Hopper")):
        return AttentionOrigin(rows=own or of_hopper)
    known = (one for one in SCALED_ATTENTION if one.kernel == kernel and arch.startswith(one.archs or ""))
    scaled = next(known, None)
    if scaled is not None:
        return replace(attention_origin(scaled.of, arch), scaled=scaled)
    of_ampere = tuple(row for row in rows if "Ampere" in row.archs)
    if of_ampere and arch.startswith(WARP_WIDE_PRODUCTS):
        return AttentionOrigin(rows=of_ampere, borrowed_from="A100")
    return AttentionOrigin(rows=of_hopper or rows, borrowed_from="H100")


def attention_rate(arch: str, kernel: AttentionKernel, head_dim: int) -> AttentionRate:
    """How fast a kernel of fused attention is: on this architecture where it was timed, else by a named default."""
    origin = attention_origin(kernel, arch)
    rate = _at_head_dim(sorted(origin.rows, key=lambda row: row.head_dim), head_dim)
    if origin.scaled is None:
        return rate
    return replace(
        rate,
        kernel=kernel,
        forward_fraction=origin.scaled.forward_ratio * rate.forward_fraction,
        backward_fraction=origin.scaled.backward_ratio * rate.backward_fraction,
    )


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
