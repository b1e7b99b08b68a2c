"""How many tokens the fullest rank of experts has over the mean."""

from math import log2, sqrt

from shardwise.formulas.kernel_time import slowest_of_ratio
from shardwise.model import MoeSpec
from shardwise.plan import Plan
from shardwise.recipe import Recipe

COMMON_CHOICE = 0.43
"""Spread of the loads of many small experts where new routers choose, over that of tokens that all choose the same.

Fitted on four pairs of runs of Qwen3-235B, 128 experts on eight expert-parallel ranks of 256 H100, balanced by force
and not: 295 and 237 TFLOP/s at 16,384 tokens, 335 and 277 at 32,768, 368 and 320 at 65,536, 389 and 357 at 131,072
(yanring/Megatron-MoE-ModelZoo@c1ad0b5 best_practice/Qwen3/readme.md, 2025). Each alone wants 0.41 to 0.44. Such
runs start from random weights and are short; a balancing loss evens loads out later.
"""
TRAINED_CHOICE = 0.08
"""Spread of the loads that trained routers make, over the same: their balancing loss is 1.0 to 1.2 for 8 of 128 experts
(mlc-ai/pith-train issue 79, 2026-07-29). Few large experts have it from the start: Mixtral 8x7B under NeMo 25.02 and
25.04 takes 5 and 1 % longer than it is predicted to take with even loads."""
FEW_EXPERTS, MANY_EXPERTS = 4.0, 16.0
"""Experts for each that a token chooses, in Mixtral and in Qwen3; between them the spread is read off a line over the
logarithm."""


def imbalance_ratio(plan: Plan) -> float:
    """Tokens of the fullest rank of experts over the mean: what the recipe says, or what natural routing does."""
    given, block = plan.recipe.routing_imbalance_ratio, plan.model.moe
    if given is not None or block is None:
        return given or 1.0
    return natural_imbalance_ratio(block, ep=plan.layout.ep, is_trained=has_trained_routers(plan.recipe))


def has_trained_routers(recipe: Recipe) -> bool:
    """Whether adapters go beside trained weights, whose routers are balanced; all else begins from random ones."""
    return recipe.adapter != "none"


def natural_imbalance_ratio(block: MoeSpec, *, ep: int, is_trained: bool = False) -> float:
    """Tokens of the fullest of ``ep`` ranks over the mean where nothing balances routing by force.

    A token chooses k of E experts. If all tokens chose the same ones, loads would have the standard deviation
    ``sqrt(E/k - 1)`` of their mean; natural routing has a part of that. A rank averages over its E/ep experts, and the
    others wait for the fullest of ep ranks. No rank gets more copies than it has experts for.

    Source: own derivation; Blom 1958 for the expected extreme.
    Assumes: loads of experts are independent and normal. A rank that holds all experts has no more than its own tokens.

    >>> block = MoeSpec(num_experts=128, num_experts_per_tok=8, moe_intermediate_size=1536, shared_intermediate_size=0,
    ...                 hidden_act="silu", is_gated=True)
    >>> [round(natural_imbalance_ratio(block, ep=ep), 2) for ep in (1, 8, 16)]
    [1.0, 1.6, 2.04]
    >>> round(natural_imbalance_ratio(block, ep=8, is_trained=True), 2)
    1.11
    """
    experts, chosen = block.num_experts, block.num_experts_per_tok
    if ep == 1:
        return 1.0
    finer = log2(max(1.0, experts / chosen / FEW_EXPERTS)) / log2(MANY_EXPERTS / FEW_EXPERTS)
    part = TRAINED_CHOICE + (0.0 if is_trained else min(1.0, finer) * (COMMON_CHOICE - TRAINED_CHOICE))
    spread = part * sqrt(max(0.0, experts / chosen - 1)) / sqrt(experts / ep)
    most = ep * min(chosen, experts / ep) / chosen
    return min(slowest_of_ratio(num_devices=ep, spread_fraction=spread), max(1.0, most))
