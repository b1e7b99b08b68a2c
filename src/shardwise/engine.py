"""Engine profiles: how each framework really implements a step. Facts of code, not fitted numbers.

A profile says which dtypes the model states have, which tensors a block saves for backward, how the loss is computed
and which buffers the sharding keeps. Every field's origin is the named framework's source; see ``docs/memory.md``.
"""

from dataclasses import dataclass, replace
from typing import Literal

from shardwise.plan import EngineName
from shardwise.recipe import Precision, Recipe
from shardwise.units import MIB

SelectivePolicy = Literal["operations", "core_attention"]
Sharding = Literal["fsdp2", "fsdp1", "megatron", "deepspeed"]
PartialRecompute = Literal["first of stage", "first of chunk", "every"]
LossKind = Literal[
    "torch",
    "torch_parallel",
    "huggingface",
    "vocab_parallel",
    "vocab_parallel_fused",
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
class EngineProfile:
    """What distinguishes one engine's memory from another's."""

    name: EngineName
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
    bucket_bytes: int
    """Size of one communication bucket of the data-parallel reduction."""
    has_in_switch_reduction: bool = True
    """Whether all-reduces may run in the NVLink switch (NVLS), NCCL's default on Hopper and Blackwell."""
    has_transformer_engine: bool = False
    """Norms before QKV and before a dense feed-forward are part of the product that reads them, and the inputs of 8-bit
    products wait for backward in 8 bits (Transformer Engine)."""
    keeps_expert_outputs: bool = True
    """Router weights multiply the outputs of experts, which then wait for backward; Megatron multiplies what enters the
    last product (``core/transformer/moe/experts.py``, ``permuted_probs``)."""
    partial_recompute: PartialRecompute = "first of stage"
    """Which blocks are recomputed where only some are: the first of a stage, the first of each of its chunks, or every
    n-th one, with the last among them."""
    sends_tokens_once_per_host: bool = False
    """Whether a token whose experts share a host crosses the network once (DeepEP, HybridEP), not once per expert."""


TORCH_STATES: dict[Precision, StateBytes] = {
    "fp32": StateBytes(
        weight_bytes=4, gradient_bytes=4, master_bytes=0, moment_bytes=4, compute_bytes=4, reduce_bytes=4
    ),
    "bf16-mixed": StateBytes(
        weight_bytes=4, gradient_bytes=4, master_bytes=0, moment_bytes=4, compute_bytes=2, reduce_bytes=4
    ),
    "fp16-mixed": StateBytes(
        weight_bytes=4, gradient_bytes=4, master_bytes=0, moment_bytes=4, compute_bytes=2, reduce_bytes=4
    ),
    "fp8-mixed": StateBytes(
        weight_bytes=4, gradient_bytes=4, master_bytes=0, moment_bytes=4, compute_bytes=2, reduce_bytes=4
    ),
    "bf16": StateBytes(
        weight_bytes=2, gradient_bytes=2, master_bytes=0, moment_bytes=2, compute_bytes=2, reduce_bytes=2
    ),
}
"""torch keeps fp32 parameters and casts; in pure bf16 the optimizer's states follow the parameters' dtype."""

MEGATRON_STATES: dict[Precision, StateBytes] = {
    "fp32": TORCH_STATES["fp32"],
    "bf16-mixed": StateBytes(
        weight_bytes=2, gradient_bytes=4, master_bytes=4, moment_bytes=4, compute_bytes=2, reduce_bytes=4
    ),
    "fp16-mixed": StateBytes(
        weight_bytes=2,
        gradient_bytes=2,
        master_bytes=4,
        moment_bytes=4,
        compute_bytes=2,
        reduce_bytes=2,
        step_gradient_bytes=4,
    ),
    "fp8-mixed": StateBytes(
        weight_bytes=2, gradient_bytes=4, master_bytes=4, moment_bytes=4, compute_bytes=2, reduce_bytes=4
    ),
    "bf16": StateBytes(
        weight_bytes=2, gradient_bytes=4, master_bytes=4, moment_bytes=4, compute_bytes=2, reduce_bytes=4
    ),
}
"""Megatron-LM ``docs/user-guide/features/dist_optimizer.md``: 18 bytes, or 6 + 12/d with the distributed optimizer
(fp16: 20, or 4 + 16/d). It has no bf16 mode without fp32 master weights, so ``bf16`` means ``bf16-mixed`` there."""

DEEPSPEED_STATES: dict[Precision, StateBytes] = {
    "fp32": TORCH_STATES["fp32"],
    **{
        precision: StateBytes(
            weight_bytes=2,
            gradient_bytes=2,
            master_bytes=4,
            moment_bytes=4,
            compute_bytes=2,
            reduce_bytes=2,
            step_gradient_bytes=4,
        )
        for precision in ("bf16-mixed", "fp16-mixed", "fp8-mixed", "bf16")
    },
}
"""DeepSpeed ``runtime/zero/stage_1_and_2.py``: 2-byte weights and gradients, fp32 master and moments, and an fp32 copy
of the local gradient partition while it steps."""

DEEPSPEED_BF16_ACCUMULATED_STATES = StateBytes(
    weight_bytes=2, gradient_bytes=6, master_bytes=4, moment_bytes=4, compute_bytes=2, reduce_bytes=4
)
"""DeepSpeed ``runtime/bf16_optimizer.py``, which its pipeline engine uses for bf16 below ZeRO 2 (BLOOM's set-up):
2-byte gradients and whole fp32 accumulators beside. Without a pipeline ZeRO 1 keeps 2-byte gradients."""

_NATIVE = EngineProfile(
    name="native",
    sharding="fsdp2",
    has_fused_norm=False,
    has_fused_activation=False,
    saves_gathered_input=True,
    selective_policy="operations",
    loss="torch",
    compiles_loss=True,
    has_foreach_optimizer=False,
    has_persistent_gradients=False,
    keeps_dummy_weight_gradients=False,
    ddp_copies_gradients=False,
    bucket_bytes=25 * MIB,
)
"""Our own trainer, whose units, loss and norms ``step/own_runtime.py`` and its neighbours know."""

_FSDP2 = replace(_NATIVE, name="fsdp2")
"""A loop of one's own around torch: transformers' blocks, FSDP2, fused AdamW, DDP with bucket views."""

_TORCHTITAN = replace(_NATIVE, name="torchtitan", partial_recompute="every")
"""``selective_ac_option`` recomputes every n-th block (``distributed/activation_checkpoint.py``, its counter starts at
1). AdamW is fused since pytorch/torchtitan@6e49885 (2025-02-24), and ``compile`` also compiles the loss since bbb1b61
(2025-04-02, ``components/loss.py``); a recipe of what came before says ``fused_optimizer`` and ``fused_loss`` false."""

_ACCELERATE = replace(
    _NATIVE,
    name="accelerate",
    selective_policy="core_attention",
    loss="huggingface",
    compiles_loss=False,
    has_foreach_optimizer=True,
    ddp_copies_gradients=True,
)

_FSDP1 = replace(_ACCELERATE, name="fsdp1", sharding="fsdp1", saves_gathered_input=False)

_DEEPSPEED = replace(
    _FSDP1,
    name="deepspeed",
    sharding="deepspeed",
    has_foreach_optimizer=False,
    has_persistent_gradients=True,
    ddp_copies_gradients=False,
    bucket_bytes=500_000_000 * 2,
)

_MEGATRON = EngineProfile(
    name="megatron",
    sharding="megatron",
    has_fused_norm=True,
    has_fused_activation=True,
    saves_gathered_input=False,
    selective_policy="core_attention",
    loss="vocab_parallel_fused",
    compiles_loss=False,
    has_foreach_optimizer=False,
    has_persistent_gradients=True,
    keeps_dummy_weight_gradients=True,
    ddp_copies_gradients=False,
    bucket_bytes=0,
    has_in_switch_reduction=False,
    has_transformer_engine=True,
    keeps_expert_outputs=False,
    partial_recompute="first of chunk",
    sends_tokens_once_per_host=True,
)

_HAI_LLM = replace(_MEGATRON, name="hai-llm")
"""DeepSeek's own, of which reports alone are public (arXiv:2412.19437, section 3). Where they say nothing, Megatron's
kernels and buffers stand for its own: both divide the optimizer, keep 8-bit inputs and recompute by module."""

_PROFILES = (_NATIVE, _TORCHTITAN, _MEGATRON, _DEEPSPEED, _FSDP2, _FSDP1, _ACCELERATE, _HAI_LLM)
_BY_NAME: dict[EngineName, EngineProfile] = {profile.name: profile for profile in _PROFILES}


def engine_profile(name: EngineName) -> EngineProfile:
    """The profile of a named engine."""
    return _BY_NAME[name]


def has_foreach_optimizer(*, profile: EngineProfile, recipe: Recipe) -> bool:
    """Whether the optimizer updates in torch's multi-tensor way: as the recipe says, else as the engine does."""
    return profile.has_foreach_optimizer if recipe.fused_optimizer is None else not recipe.fused_optimizer


def state_bytes(
    *, engine: EngineName, precision: Precision, zero_stage: int = 3, is_pipelined: bool = False
) -> StateBytes:
    """Bytes per parameter of every model state of an engine at a precision, before sharding."""
    if engine == "deepspeed" and is_pipelined and zero_stage <= 1 and precision in ("bf16-mixed", "bf16"):
        return DEEPSPEED_BF16_ACCUMULATED_STATES
    tables = {"megatron": MEGATRON_STATES, "deepspeed": DEEPSPEED_STATES}
    return tables.get(_BY_NAME[engine].sharding, TORCH_STATES)[precision]
