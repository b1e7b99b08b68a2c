"""Finds how copies of tokens travel to the experts of a plan, and which kernels put their rows in order."""

from shardwise.engines.profile import RowKernels
from shardwise.engines.table import engine_profile
from shardwise.layout import ExpertExchange
from shardwise.model import MoeSpec
from shardwise.plan import Plan
from shardwise.step.inventory import ExpertChoice
from shardwise.step.native_engine import has_own_decoder, is_native_engine


def expert_exchange(plan: Plan) -> ExpertExchange:
    """The exchange that the layout names; where it names none, the one that the engine uses."""
    return plan.layout.expert_exchange or engine_profile(plan.engine).expert_exchange


def expert_choice(block: MoeSpec) -> ExpertChoice:
    """How many experts a token chooses, and from how many groups."""
    return ExpertChoice(
        num_experts_per_tok=block.num_experts_per_tok,
        num_groups=block.num_groups,
        num_groups_per_tok=block.num_groups_per_tok,
    )


def has_plain_dispatcher(plan: Plan) -> bool:
    """Whether Megatron's host calls a dispatcher that waits for the number of rows of every rank."""
    is_exchanged = plan.layout.ep > 1 and expert_exchange(plan) == "alltoall"
    return is_exchanged and engine_profile(plan.engine).has_transformer_engine


def row_kernels(plan: Plan) -> RowKernels:
    """The kernels that put rows in order: fused ones where DeepEP exchanges rows, elsewhere those of the engine, or of
    transformers where it builds the model."""
    if plan.layout.ep > 1 and expert_exchange(plan) == "deepep":
        return "fused"
    is_foreign = is_native_engine(plan) and plan.layout.ep == 1 and not has_own_decoder(plan.model)
    return "transformers" if is_foreign else engine_profile(plan.engine).row_kernels
