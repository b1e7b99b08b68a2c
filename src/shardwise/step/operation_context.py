"""Facts outside a block that decide the size of its operations."""

from dataclasses import dataclass
from math import ceil

from shardwise.cluster import Dtype, Gpu
from shardwise.layout import Layout
from shardwise.plan import EngineName
from shardwise.recipe import Precision
from shardwise.step.inventory import Operation, OperationPhase
from shardwise.step.stage_context import StageContext
from shardwise.units import Flop

ATTENTION_BACKWARD_RATIO = 2.5
"""Flash backward over forward FLOP: the scores are recomputed, five products against two (arXiv:2307.08691, section
3.1)."""

MATMUL_DTYPES: dict[Precision, Dtype] = {
    "fp32": "fp32",
    "bf16-mixed": "bf16",
    "fp16-mixed": "fp16",
    "bf16": "bf16",
    "fp8-mixed": "fp8",
}

SKEWED_ROUTING_RATIO = 1.09
"""Time of experts' grouped kernels over that of even shares, when shares run from a tenth to nearly twice the mean:
median of 24 on one H100 (0.92 to 1.42; forward and dgrad 1.17; ``2026-11-28-h100-products.csv``)."""


TORCH_NORM_ENGINES: tuple[EngineName, ...] = ("native", "fsdp2")
"""``nn.RMSNorm`` is one kernel in torch 2.11: 62 us forward and 157 us backward for 8,192 x 4,096 on H100
(``2026-11-27-h100-bandwidth.csv``). Transformers spell it out, and torchtitan's published eager runs predate it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationContext:
    """What every operation of one stage has in common."""

    layout: Layout
    hidden_size: int
    tokens: int
    """T: tokens of one micro-batch on this rank."""
    sequences: int
    """Sequences of one micro-batch."""
    seq_len: int
    document_len: int
    """Tokens that attend to each other."""
    sequence_shards: int
    """Ranks the residual stream is divided over."""
    element_bytes: int
    residual_bytes: int
    matmul_dtype: Dtype
    """Linear layers of blocks; attention, routers and the head stay in ``core_dtype``."""
    core_dtype: Dtype
    weight_gradient_bytes: int
    """Traffic per element of a weight gradient: written once, or read and written in fp32 when accumulated in place."""
    is_eager_attention: bool
    has_fused_norm: bool
    has_fused_activation: bool
    has_fused_rotary: bool
    is_base_frozen: bool
    is_quantised: bool
    has_fused_softmax: bool = False
    """Unfused attention with scale, mask and softmax in one kernel (Megatron)."""
    attention_dropout: bool = False
    hidden_dropout: bool = False
    has_fused_dropout: bool = False
    """Bias, dropout and residual addition in one kernel."""
    joins_projections: bool = False
    """Projections of one input are one weight (Megatron: QKV, gate with up), and norms write 8 bits themselves."""
    adds_gradients: bool = False
    """Every weight's gradient is added into a buffer by a kernel of its own."""
    is_autocast: bool = False
    routing_slowdown_ratio: float = 1.0
    """Time of the slowest rank's experts over that with even routing."""
    is_gathered: bool = False
    tensor_calls: tuple[int, int] = (0, 0)
    """Host time of tensor parallelism in one block, forward and backward, in kernels issued one by one."""
    """Blocks are gathered and their gradients reduced one by one (FSDP, ZeRO-3)."""

    @property
    def residual_elements(self) -> int:
        """Elements of the residual stream on this rank."""
        return self.tokens * self.hidden_size // self.sequence_shards

    def replicated_tokens(self) -> int:
        """Tokens a matrix sees that tensor parallelism leaves whole: its rank's part of a divided sequence."""
        return ceil(self.tokens / self.sequence_shards)

    def memory_operation(
        self, name: str, phase: OperationPhase, num_bytes: float, *, flop: Flop = 0.0, num_kernels: int = 1
    ) -> Operation:
        """An operation bound by memory traffic."""
        return Operation(
            name=name,
            kind="memory",
            phase=phase,
            count=1,
            flop=flop,
            num_bytes=round(num_bytes),
            dtype=self.core_dtype,
            num_kernels=num_kernels,
        )


def usable_dtype(dtype: Dtype, gpu: Gpu) -> Dtype:
    """The dtype whose units the device really uses: fp8 falls back to bf16, bf16 to fp32, where there are none."""
    fallbacks: dict[Dtype, Dtype] = {"fp4": "fp8", "fp8": "bf16", "bf16": "fp32", "fp16": "fp32", "tf32": "fp32"}
    while not gpu.peak_flop_per_s(dtype) and dtype in fallbacks:
        dtype = fallbacks[dtype]
    return dtype


def operation_context(context: StageContext) -> OperationContext:
    """The facts of one stage that its operations follow from."""
    plan, profile, block = context.plan, context.profile, context.block_context
    gpu = plan.cluster.gpu
    matmul = MATMUL_DTYPES[plan.recipe.precision]
    core: Dtype = "bf16" if matmul == "fp8" else matmul
    accumulates_in_place = profile.sharding == "megatron"
    return OperationContext(
        layout=plan.layout,
        hidden_size=plan.model.hidden_size,
        tokens=context.tokens,
        sequences=plan.recipe.micro_batch_size,
        seq_len=plan.recipe.seq_len,
        document_len=plan.recipe.seq_len if block.is_eager_attention else plan.recipe.document_len,
        sequence_shards=block.sequence_shards,
        element_bytes=block.element_bytes,
        residual_bytes=block.residual_bytes,
        matmul_dtype=usable_dtype(matmul, gpu),
        core_dtype=usable_dtype(core, gpu),
        weight_gradient_bytes=2 * context.states.gradient_bytes if accumulates_in_place else block.element_bytes,
        is_eager_attention=block.is_eager_attention,
        has_fused_norm=block.has_fused_norm or plan.engine in TORCH_NORM_ENGINES,
        has_fused_activation=block.has_fused_activation,
        has_fused_rotary=profile.sharding == "megatron" or plan.recipe.compile,
        is_base_frozen=context.has_adapter,
        is_quantised=plan.recipe.adapter == "qlora",
        has_fused_softmax=block.has_fused_softmax,
        attention_dropout=block.attention_dropout,
        hidden_dropout=block.hidden_dropout,
        has_fused_dropout=profile.sharding == "megatron" or plan.recipe.compile,
        joins_projections=profile.sharding == "megatron",
        adds_gradients=not context.gathers_parameters
        and (context.has_persistent_gradients or plan.num_microbatches > 1),
        is_autocast=context.is_autocast,
        routing_slowdown_ratio=routing_slowdown_ratio(
            plan.recipe.routing_imbalance_ratio, is_divided=plan.layout.ep > 1
        ),
        is_gathered=context.gathers_parameters and plan.layout.state_shard_size > 1,
        tensor_calls=_tensor_calls(context),
    )


OWN_TENSOR_CALLS = (60, 62)
"""Host time that tensor parallelism adds to one block of our trainer, forward and backward, in kernels: views of parts,
collectives, waiting. Fitted on its four runs in eager mode on H100 (``2026-11-28-h100-train-smoke.jsonl`` and
``-2.jsonl``): 3.5 to 6 ms at that host's pace. As much when compiled."""
DTENSOR_CALLS = (190, 225)
"""The same where every operation is dispatched on DTensors in eager mode: blocks on 2 and 4 ranks took 20 ms of host
time and 7.5 ms to be computed again (``2026-11-27-h100-memory.jsonl``, tp-sp and tp-sp-full)."""
COLLECTIVE_CALLS = 2
"""Host time of one collective of other engines, 30 to 50 us with Python around it, in kernels."""


def _tensor_calls(context: StageContext) -> tuple[int, int]:
    layout = context.plan.layout
    if layout.tp == 1:
        return (0, 0)
    if context.profile.sharding != "fsdp2":
        calls = (4 if layout.sequence_parallel else 2) * COLLECTIVE_CALLS
        return (calls, calls)
    if context.is_own_runtime or context.plan.recipe.compile:
        return OWN_TENSOR_CALLS
    return DTENSOR_CALLS


def routing_slowdown_ratio(imbalance_ratio: float, *, is_divided: bool) -> float:
    """What uneven routing makes of the time of experts' products.

    Between ranks the fullest computes so much more than the mean, and the others wait; a rank that holds all experts
    has no more tokens, only a grouped kernel of uneven shares.

    >>> routing_slowdown_ratio(1.5, is_divided=True), routing_slowdown_ratio(1.5, is_divided=False)
    (1.5, 1.09)
    """
    return imbalance_ratio if is_divided else min(imbalance_ratio, SKEWED_ROUTING_RATIO)
