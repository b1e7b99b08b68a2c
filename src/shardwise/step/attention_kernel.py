"""Which kernel computes the attention of a plan."""

from shardwise.attention_kernels import AttentionKernel
from shardwise.engines.table import engine_profile
from shardwise.plan import Plan
from shardwise.step.own_runtime import is_own_runtime


def attention_kernel(plan: Plan) -> AttentionKernel:
    """The kernel of a plan: as the recipe says, else the engine's on this architecture.

    Our trainer asks for FlashAttention-2 itself where queries are the last of a prefix: its causal mask is aligned to
    the lower right corner (``train/context_parallel.py``).
    """
    if plan.recipe.writes_scores:
        return "math"
    if plan.recipe.attention_kernel is not None:
        return plan.recipe.attention_kernel
    if is_own_runtime(plan) and plan.layout.cp > 1:
        return "fa2"
    return engine_profile(plan.engine).default_attention_kernel(plan.cluster.gpu.arch)
