"""How a framework implements a step: what an engine's profile says. Facts of code, not fitted numbers.

A profile says which dtypes the model states have, which tensors a block saves for backward, how the loss is computed
and which buffers the sharding keeps. Every field's origin is the named framework's source; see ``docs/memory.md``.
"""

from dataclasses import dataclass
from typing import Literal

from shardwise.attention_kernels import ATTENTION_KERNELS, DATACENTER_BLACKWELL, AttentionCall, AttentionKernel
from shardwise.layout import ExpertExchange
from shardwise.recipe import Recipe

SelectivePolicy = Literal["operations", "core_attention"]
Sharding = Literal["fsdp2", "fsdp1", "megatron", "deepspeed"]
RowKernels = Literal["fused", "gather", "index_put", "transformers"]
PartialRecompute = Literal["first of stage", "first of chunk", "every"]
LossKind = Literal[
    "torch",
    "torch_parallel",
    "huggingface",
    "vocab_parallel",
    "vocab_parallel_upcast",
    "vocab_parallel_fused",
    "vocab_parallel_compiled",
    "fused_in_place",
    "fused",
    "fused_upcast",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes per parameter of every model state, before any sharding."""

    weight_bytes: int
    """The copy forward starts from (fp32 shards under FSDP, bf16 under Megatron)."""
    gradient_bytes: int
    """The accumulated gradient."""
    master_bytes: int
    """A separate fp32 copy held with the optimizer; 0 when the weights themselves are fp32."""
    moment_bytes: int
    """One element of one optimizer moment."""
    compute_bytes: int
    """Weights as the matrix products read them, after gathering or casting."""
    reduce_bytes: int
    """Gradients as they are communicated."""
    step_gradient_bytes: int = 0
    """A further copy of the local gradients made for the optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientBucket:
    """The size of what is reduced at once, in bytes or in elements as the engine counts it, and what sets it."""

    num_bytes: int = 0
    num_elements: int = 0
    option: str = ""
    """Empty where buckets are parts of one buffer, which no size of a bucket makes smaller."""

    def elements(self, element_bytes: int) -> float:
        """Elements of a full bucket."""
        return self.num_elements or self.num_bytes / element_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProfile:
    """The facts of one engine that its memory and its kernels follow from."""

    sharding: Sharding
    has_fused_norm: bool
    """RMSNorm and LayerNorm save their input once instead of fp32 intermediates, also without compile."""
    has_fused_activation: bool
    """A gated activation saves gate and up but not the activated gate, also without compile."""
    saves_gathered_input: bool
    """Under sequence parallelism the all-gathered input is kept for the weight gradient (DTensor); Megatron gathers
    again."""
    selective_policy: SelectivePolicy
    loss: LossKind
    compiles_loss: bool
    """``compile`` also compiles the loss, which then makes no fp32 copies of the logits."""
    has_foreach_optimizer: bool
    """The optimizer step makes one temporary the size of the parameters it updates (torch ``foreach=True``)."""
    has_persistent_gradients: bool
    """Gradient buffers are allocated once (Megatron, DeepSpeed ZeRO-1) instead of anew in each backward."""
    keeps_dummy_weight_gradients: bool
    """Transformer Engine keeps one placeholder gradient per matrix shape when it accumulates into fp32 buffers."""
    ddp_copies_gradients: bool
    """DDP's buckets are a second copy of all gradients (``gradient_as_bucket_view=False``, torch's default)."""
    bucket: GradientBucket
    """One bucket of the data-parallel reduction."""
    has_in_switch_reduction: bool = True
    """Whether all-reduces may run in the NVLink switch (NVLS), NCCL's default on Hopper and Blackwell."""
    has_transformer_engine: bool = False
    """Norms before QKV and before a dense feed-forward are part of the product that reads them, and the inputs of 8-bit
    products wait for backward in 8 bits (Transformer Engine)."""
    block_calls: tuple[int, int] = (0, 0)
    """Host time of its Python around the kernels of a block, forward and backward, in kernels, where it was timed: such
    a host is known to run ahead of the device."""
    keeps_expert_outputs: bool = True
    """Router weights multiply the outputs of experts, which then wait for backward; Megatron multiplies what enters the
    last product (``core/transformer/moe/experts.py``, ``permuted_probs``)."""
    partial_recompute: PartialRecompute = "first of stage"
    """Which blocks are recomputed where only some are: the first of a stage, the first of each of its chunks, or every
    n-th one, with the last among them."""
    issues_experts_in_8_bits: bool = False
    """Whether 8-bit casts and products of experts are kernels of every expert, which the host issues one by one on
    several streams, instead of grouped ones."""
    keeps_activation_inputs_in_8_bits: bool = False
    """Whether runs in 8 bits keep what gated activations read in 8 bits where a recipe does not say."""
    scales_tiles: bool = False
    """Whether 8-bit products scale tiles of 128 numbers instead of whole tensors, as DeepSeek's do: inputs, gradients
    and transposed copies are cast by kernels of their own."""
    row_kernels: RowKernels = "fused"
    """How copies of tokens are put in the order of experts and added up again: by kernels made for it, by
    gathers in both directions (our trainer), or by writing to an index (torchtitan ``models/moe/moe.py``; transformers
    in backward)."""
    expert_exchange: ExpertExchange = "alltoall"
    """How copies of tokens travel to experts where a layout does not say."""
    gathers_sequences_in_8_bits: bool = False
    """Whether 8-bit products' inputs and output gradients are cast before sequence parallelism gathers them."""
    has_torch_norm_kernel: bool = False
    """Whether eager norms are torch's ``nn.RMSNorm``, one kernel in torch 2.11: 62 us forward and 157 us backward for
    8,192 x 4,096 on H100 (``2026-11-27-h100-bandwidth.csv``). Transformers spell it out, and torchtitan's published
    eager runs predate it."""
    cudnn_attention_archs: tuple[str, ...] = ("Hopper", *DATACENTER_BLACKWELL)
    """Beginnings of the names of architectures on which fused attention is cuDNN's where a recipe does not say. torch
    prefers it on compute capability 9.0, 10.0 and 10.3 with cuDNN 9.15.1, which its wheels hold since 2.11 (2026-03;
    pytorch/pytorch@001f694 ``sdp_utils.cpp``, ``check_prefer_cudnn_attention``; huggingface/transformers#48163); runs
    from before have FlashAttention-2. Loops that call transformers' models get torch's choice (``sdpa``)."""
    uses_sdpa: bool = True
    """Whether attention is torch's ``scaled_dot_product_attention``, which takes its memory-efficient kernel where no
    faster one computes a call (``sdp_utils.cpp``, ``select_sdp_backend``). Transformer Engine writes scores out there,
    and its limits of heads are not modelled."""

    def default_attention_kernel(self, call: AttentionCall) -> AttentionKernel:
        """The kernel that computes a call where a recipe does not say: the first of the engine's order that can."""
        prefers_cudnn = call.arch.startswith(self.cudnn_attention_archs)
        if not self.uses_sdpa:
            call = AttentionCall(arch=call.arch, is_16_bit=call.is_16_bit)
        order: tuple[AttentionKernel, ...] = (
            *(("cudnn",) if prefers_cudnn else ()),
            "fa2",
            *(("efficient",) if self.uses_sdpa else ()),
        )
        return next((name for name in order if ATTENTION_KERNELS[name].computes(call)), "math")

    has_fp32_adapters: bool = False
    """Whether adapters are fp32 beside a base in 16 bits and cast their inputs (peft ``autocast_adapter_dtype``, on by
    default)."""
    wraps_ends: bool | None = None
    """Whether the token table, and the final norm with the head, are FSDP units of their own where a recipe does not
    say; otherwise they are the root unit with whatever no block holds. ``None`` where that is no choice."""

    @property
    def is_torch(self) -> bool:
        """Whether torch's own FSDP and DDP divide states and reduce gradients."""
        return self.sharding in ("fsdp2", "fsdp1")


def has_foreach_optimizer(*, profile: EngineProfile, recipe: Recipe) -> bool:
    """Whether the optimizer updates in torch's multi-tensor way: as the recipe says, else as the engine does."""
    return profile.has_foreach_optimizer if recipe.fused_optimizer is None else not recipe.fused_optimizer
