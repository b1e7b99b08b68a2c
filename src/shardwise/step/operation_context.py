"""Facts outside a block that decide the size of its operations."""

from dataclasses import dataclass
from math import ceil

from shardwise.cluster import Dtype, Gpu
from shardwise.engines.profile import RowKernels
from shardwise.engines.table import engine_profile
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Precision
from shardwise.step.expert_exchange import has_plain_dispatcher, row_kernels
from shardwise.step.expert_routing import imbalance_ratio
from shardwise.step.inventory import Operation, OperationPhase
from shardwise.step.native_engine import (
    compiles_experts,
    is_native_engine,
    is_replicated,
    uses_units,
    weighs_expert_inputs,
)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedBytes:
    """Bytes per element of sums that a piece of attention in 16 bits, but the first, is added to."""

    outputs: int
    queries: int
    keys: int
    kernels: tuple[int, int]
    """Kernels of a piece, forward and backward."""


TRACED_MERGE = MergedBytes(outputs=12, queries=12, keys=20, kernels=(3, 8))
EAGER_MERGE = MergedBytes(outputs=36, queries=12, keys=20, kernels=(6, 8))
"""Counted in torch ``_templated_ring_attention``, whose sums are fp32: 4 read, 2 read and 4 written; where half of the
queries or of the keys were computed the sum is put together again (a half of that, and 8), gradients of keys are
gathered into one buffer (8) before they are sent, and without a compiler outputs are cast and merged by five kernels.
"""
TRANSFORMER_ENGINES_MERGE = MergedBytes(outputs=6, queries=6, keys=6, kernels=(3, 4))
"""Sums in 16 bits are read and written beside each piece (NVIDIA/TransformerEngine@d0067d0
``dot_product_attention/context_parallel.py``, ``flash_attn_fwd_out_correction``, ``dq.add_``, ``dk.add_``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationContext:
    """Sizes, degrees, dtypes and kernels that decide the operations of one stage, the same for all of its blocks."""

    layout: Layout
    hidden_size: int
    tokens: int
    """T: tokens of one micro-batch on this rank."""
    sequences: int
    """Sequences of one micro-batch."""
    seq_len: int
    document_len: int
    """Number of tokens that attend to each other."""
    sequence_shards: int
    """Ranks the residual stream is divided over."""
    element_bytes: int
    residual_bytes: int
    matmul_dtype: Dtype
    """Dtype of the blocks' linear layers; attention, routers and the head stay in ``core_dtype``."""
    core_dtype: Dtype
    weight_gradient_bytes: int
    """Traffic per element of a weight gradient: written once, or read and written in fp32 when accumulated in place."""
    is_eager_attention: bool
    has_fused_norm: bool
    has_fused_activation: bool
    has_fused_rotary: bool
    is_base_frozen: bool
    is_quantised: bool
    adapted_input_bytes: int = 0
    """Bytes an element of the input that an adapter casts for itself; 0 where it reads what its matrix reads."""
    row_kernels: RowKernels = "fused"
    """How copies of tokens are put in the order of experts."""
    has_plain_dispatcher: bool = False
    """Whether Megatron's host calls a dispatcher that waits for the number of rows of every rank."""
    issues_each_expert: bool = False
    """Whether the host issues the casts and products of every expert one by one."""
    weighs_expert_inputs: bool = False
    """Whether router weights multiply the activations of experts (:mod:`~shardwise.step.native_engine`)."""
    compiles_experts: bool = False
    """Whether a compiler sees the whole of blocks with experts."""
    merged_bytes: MergedBytes | None = None
    """Traffic of putting pieces of attention together where context parallelism computes it in pieces."""
    repeats_kv_heads: bool = False
    has_fused_softmax: bool = False
    """Whether unfused attention has scale, mask and softmax in one kernel (Megatron)."""
    attention_dropout: bool = False
    hidden_dropout: bool = False
    has_fused_dropout: bool = False
    """Whether bias, dropout and residual addition are one kernel."""
    packs_heads: bool = False
    """Whether queries, keys and values are copied into one tensor, as FlashAttention-1 takes them."""
    gathered_element_bytes: int = 2
    """Bytes per element of what tensor parallelism gathers."""
    joins_projections: bool = False
    """Whether projections of one input are one weight (Megatron: QKV, gate with up), and norms write 8 bits."""
    scales_tiles: bool = False
    """Whether 8-bit products scale tiles of 128 numbers, whose casts are kernels of their own."""
    adds_gradients: bool = False
    """Whether a kernel of its own adds every weight's gradient into a buffer."""
    is_autocast: bool = False
    routing_slowdown_ratio: float = 1.0
    """Time of the slowest rank's experts over that with even routing."""
    is_gathered: bool = False
    """Whether blocks are gathered and their gradients reduced one by one (FSDP, ZeRO-3)."""
    has_torch_host: bool = False
    """Whether FSDP2, DTensor and torch's checkpointing stand around the kernels."""
    engine_calls: tuple[int, int] = (0, 0)
    """Host time of the engine's Python around the kernels of a block, forward and backward, in kernels."""
    has_own_host: bool = False
    """Whether our runtime's Python stands around the kernels, which computes on parts of DTensors."""
    is_compiled: bool = False
    has_units: bool = False
    """Whether blocks are units of FSDP2, be it over a single rank."""

    @property
    def is_own_eager(self) -> bool:
        """Whether our runtime's own functions run kernel by kernel."""
        return self.has_own_host and not self.is_compiled

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

    def memory_operations(
        self, name: str, num_bytes: tuple[float, float], kernels: tuple[int, int]
    ) -> tuple[Operation, Operation]:
        """An operation bound by memory traffic and its backward, with bytes and kernels of each."""
        return (
            self.memory_operation(name, "forward", num_bytes[0], num_kernels=kernels[0]),
            self.memory_operation(f"{name}.backward", "backward", num_bytes[1], num_kernels=kernels[1]),
        )


def usable_dtype(dtype: Dtype, gpu: Gpu) -> Dtype:
    """The dtype whose units the device really uses: fp8 falls back to bf16, bf16 to fp32, where there are none."""
    fallbacks: dict[Dtype, Dtype] = {"fp4": "fp8", "fp8": "bf16", "bf16": "fp32", "fp16": "fp32", "tf32": "fp32"}
    while not gpu.peak_flop_per_s(dtype) and dtype in fallbacks:
        dtype = fallbacks[dtype]
    return dtype


def issues_each_expert(plan: Plan) -> bool:
    """Whether the host issues the products of every expert by themselves: in 8 bits, on devices that have them."""
    dtype = usable_dtype(MATMUL_DTYPES[plan.recipe.precision], plan.cluster.gpu)
    return dtype == "fp8" and engine_profile(plan.engine).issues_experts_in_8_bits


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
        gathered_element_bytes=gathered_element_bytes(context),
        residual_bytes=block.residual_bytes,
        matmul_dtype=usable_dtype(matmul, gpu),
        core_dtype=usable_dtype(core, gpu),
        weight_gradient_bytes=2 * context.states.gradient_bytes if accumulates_in_place else block.element_bytes,
        is_eager_attention=block.is_eager_attention,
        has_fused_norm=block.has_fused_norm or profile.has_torch_norm_kernel,
        has_fused_activation=block.has_fused_activation,
        has_fused_rotary=profile.sharding == "megatron" or plan.recipe.compile or plan.recipe.liger_kernels,
        is_base_frozen=context.has_adapter,
        is_quantised=plan.recipe.adapter == "qlora",
        adapted_input_bytes=context.adapted_input_bytes,
        row_kernels=row_kernels(plan),
        has_plain_dispatcher=has_plain_dispatcher(plan),
        issues_each_expert=issues_each_expert(plan),
        weighs_expert_inputs=is_native_engine(plan)
        and weighs_expert_inputs(layout=plan.layout, recipe=plan.recipe, model=plan.model),
        compiles_experts=is_native_engine(plan) and compiles_experts(layout=plan.layout, recipe=plan.recipe),
        merged_bytes=_merged_bytes(plan),
        repeats_kv_heads=plan.recipe.repeat_kv_heads,
        has_fused_softmax=block.has_fused_softmax,
        packs_heads=profile.sharding == "deepspeed" and plan.recipe.attention_kernel == "fa1",
        attention_dropout=block.attention_dropout,
        hidden_dropout=block.hidden_dropout,
        has_fused_dropout=profile.sharding == "megatron" or plan.recipe.compile,
        joins_projections=profile.sharding == "megatron",
        scales_tiles=profile.scales_tiles,
        adds_gradients=not context.gathers_parameters
        and (context.has_persistent_gradients or plan.num_microbatches > 1),
        is_autocast=context.is_autocast,
        routing_slowdown_ratio=routing_slowdown_ratio(imbalance_ratio(plan), is_divided=plan.layout.ep > 1),
        is_gathered=_is_gathered(context),
        has_torch_host=profile.sharding == "fsdp2",
        engine_calls=profile.block_calls,
        has_own_host=is_native_engine(plan),
        is_compiled=plan.recipe.compile,
        has_units=is_native_engine(plan) and uses_units(layout=plan.layout, recipe=plan.recipe),
    )


def _merged_bytes(plan: Plan) -> MergedBytes | None:
    """What ring attention moves for every piece; Ulysses and our trainer's queries attend to all keys at once."""
    profile = engine_profile(plan.engine)
    if plan.layout.cp == 1 or profile.sharding == "deepspeed" or is_native_engine(plan):
        return None
    if profile.sharding == "megatron":
        return TRANSFORMER_ENGINES_MERGE
    return TRACED_MERGE if plan.recipe.compile else EAGER_MERGE


def gathered_element_bytes(context: StageContext) -> int:
    """Bytes per element of what sequence parallelism gathers: one where it is cast before it is sent."""
    plan = context.plan
    is_cast = context.profile.gathers_sequences_in_8_bits and plan.recipe.precision == "fp8-mixed"
    has_units = usable_dtype("fp8", plan.cluster.gpu) == "fp8"
    return 1 if is_cast and has_units else context.block_context.element_bytes


def _is_gathered(context: StageContext) -> bool:
    """Whether several ranks divide blocks; whole states are units over one rank in our runtime."""
    layout = context.plan.layout
    is_whole = is_native_engine(context.plan) and is_replicated(layout)
    return context.gathers_parameters and layout.state_shard_size > 1 and not is_whole


def routing_slowdown_ratio(imbalance_ratio: float, *, is_divided: bool) -> float:
    """Factor of uneven routing on the time of experts' products.

    Between ranks the fullest computes so much more than the mean, and the others wait; a rank that holds all experts
    has no more tokens, only a grouped kernel of uneven shares.

    >>> routing_slowdown_ratio(1.5, is_divided=True), routing_slowdown_ratio(1.5, is_divided=False)
    (1.5, 1.09)
    """
    return imbalance_ratio if is_divided else min(imbalance_ratio, SKEWED_ROUTING_RATIO)
