"""Finds how copies of tokens travel to the experts of a plan, and which kernels put their rows in order."""

from shardwise.engines.profile import RowKernels
from shardwise.engines.table import engine_profile
from shardwise.layout import ExpertExchange
from shardwise.plan import Plan


def expert_exchange(plan: Plan) -> ExpertExchange:
    """The exchange that the layout names; where it names none, the one that the engine uses."""
    return plan.layout.expert_exchange or engine_profile(plan.engine).expert_exchange


def has_plain_dispatcher(plan: Plan) -> bool:
    """Whether Megatron's host calls a dispatcher that waits for the number of rows of every rank."""
    is_exchanged = plan.layout.ep > 1 and expert_exchange(plan) == "alltoall"
    return is_exchanged and engine_profile(plan.engine).has_transformer_engine


def row_kernels(plan: Plan) -> RowKernels:
    """The kernels that put rows in order: fused ones where DeepEP exchanges rows, the engine's everywhere else."""
    is_exchanged = plan.layout.ep > 1 and expert_exchange(plan) == "deepep"
    return "fused" if is_exchanged else engine_profile(plan.engine).row_kernels
