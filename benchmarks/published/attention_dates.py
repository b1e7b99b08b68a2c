"""The attention kernel that an engine ran at the date of a published run, where it has changed since."""

from dataclasses import replace

from shardwise.engines.table import engine_profile
from shardwise.plan import Plan
from shardwise.step.attention_kernel import attention_call, attention_kernel

TITAN_CUDNN_SINCE = "2025-10"
"""Month from which torchtitan asks for cuDNN's attention first (pytorch/torchtitan@6a3a9da, 2025-10-09)."""
TITAN_CUDNN_ON_B200_SINCE = "2025-05"
"""The same on compute capability 10.0 (pytorch/torchtitan@3b85aa3, 2025-05-14)."""
TORCH_CUDNN_SINCE = "2026-03"
"""Month of torch 2.11, whose wheels hold the cuDNN that torch prefers (huggingface/transformers#48163)."""


def at_its_date(plan: Plan, date: str) -> Plan:
    """The plan with torch's former choice by name where the engine's of today is cuDNN's and was not yet at ``date``.

    That is FlashAttention-2 for most heads. Transformer Engine's choice is taken as today's.
    """
    profile = engine_profile(plan.engine)
    if not profile.uses_sdpa or attention_kernel(plan) != "cudnn" or date >= _cudnn_since(plan):
        return plan
    former = replace(profile, cudnn_attention_archs=()).default_attention_kernel(attention_call(plan))
    return replace(plan, recipe=replace(plan.recipe, attention_kernel=former))


def _cudnn_since(plan: Plan) -> str:
    if plan.engine != "torchtitan":
        return TORCH_CUDNN_SINCE
    return TITAN_CUDNN_ON_B200_SINCE if plan.cluster.gpu.arch.startswith("Blackwell") else TITAN_CUDNN_SINCE
