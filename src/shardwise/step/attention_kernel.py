"""Finds the kernel that computes the attention of a plan."""

from shardwise.attention_kernels import AttentionCall, AttentionKernel
from shardwise.engines.table import engine_profile
from shardwise.plan import Plan
from shardwise.step.native_engine import is_native_engine


def attention_kernel(plan: Plan) -> AttentionKernel:
    """The kernel of a plan: as the recipe says, else the first of the engine's order that computes its attention.

    Our trainer asks for FlashAttention-2 itself where 16-bit queries are the last of a prefix: its causal mask is
    aligned to the lower right corner (``train/context_parallel.py``).
    """
    if plan.recipe.writes_scores:
        return "math"
    if plan.recipe.attention_kernel is not None:
        return plan.recipe.attention_kernel
    if divides_by_flash_attention(plan):
        return "fa2"
    return engines_kernel(plan)


def divides_by_flash_attention(plan: Plan) -> bool:
    """Whether our trainer divides the sequence with FlashAttention-2; in fp32 it masks scores instead."""
    return is_native_engine(plan) and plan.layout.cp > 1 and plan.recipe.precision != "fp32"


def writes_scores(plan: Plan) -> bool:
    """Whether scores are written to memory: the recipe says so, or the engine has no fused kernel for them."""
    recipe = plan.recipe
    return recipe.writes_scores or (recipe.attention_kernel is None and engines_kernel(plan) == "math")


def engines_kernel(plan: Plan) -> AttentionKernel:
    """The kernel that the engine chooses by itself."""
    return engine_profile(plan.engine).default_attention_kernel(attention_call(plan))


def fastest_kernel(plan: Plan) -> AttentionKernel:
    """The kernel whose rate stands for products that no kernel was timed at: the engine's for usual heads in 16 bits.

    Scores that are written out, and attention in fp32, are such products.
    """
    call = AttentionCall(arch=plan.cluster.gpu.arch)
    return "cudnn" if engine_profile(plan.engine).default_attention_kernel(call) == "cudnn" else "fa2"


def attention_call(plan: Plan) -> AttentionCall:
    """The plan's attention as a kernel sees it."""
    arch, is_16_bit = plan.cluster.gpu.arch, plan.recipe.precision != "fp32"
    attention = plan.model.attention
    if attention is None:
        return AttentionCall(arch=arch, is_16_bit=is_16_bit)
    return AttentionCall(
        arch=arch,
        head_dim=attention.head_dim,
        v_head_dim=attention.v_head_dim,
        is_16_bit=is_16_bit,
        dropout_fraction=plan.model.attention_dropout_fraction,
    )
