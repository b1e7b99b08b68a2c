"""Sentences for the user: what a prediction takes for granted."""

from collections.abc import Iterator

from shardwise.engine import engine_profile
from shardwise.plan import Plan
from shardwise.predict.kernel_rates import kernel_rates
from shardwise.predict.offload_time import ASSUMED_DRIVES_PER_NODE, HOST_ADAM_BYTES_PER_S
from shardwise.predict.product_rates import DEFAULT_GEMM_FRACTION


def plan_assumptions(plan: Plan) -> tuple[str, ...]:
    """Everything assumed about model, cluster and step, the most general first."""
    return (*plan.model.assumptions, *plan.cluster.assumptions, *_step_assumptions(plan))


def _step_assumptions(plan: Plan) -> Iterator[str]:
    gpu, recipe, layout = plan.cluster.gpu, plan.recipe, plan.layout
    profile = engine_profile(plan.engine)
    if not kernel_rates(gpu=gpu, profile=profile, head_dim=128).is_measured:
        yield (
            f"no matrix-product measurement is known for {gpu.id}; "
            f"{DEFAULT_GEMM_FRACTION:.0%} of its peak stands in (torch's own estimator)"
        )
    if recipe.precision == "bf16-mixed" and not gpu.peak_flop_per_s("bf16"):
        yield f"{gpu.id} has no bf16 matrix units; products run at the fp32 rate"
    if recipe.precision == "fp8-mixed" and not gpu.peak_flop_per_s("fp8"):
        yield f"{gpu.id} has no fp8 matrix units; products run in bf16"
    if plan.model.is_moe:
        yield "tokens are routed evenly over experts; natural routing is slower"
    if plan.model.num_side_params:
        yield "towers and other attachments beside the blocks are counted in memory and left out of the step time"
    if profile.sharding == "megatron" and layout.zero_stage in (1, 2) and layout.data_parallel_size > 1:
        yield "Megatron runs with --overlap-grad-reduce and --overlap-param-gather"
    if recipe.offload != "none":
        yield f"CPU Adam reaches {HOST_ADAM_BYTES_PER_S / 1e9:.0f} GB/s of host memory bandwidth per node"
    if recipe.offload == "nvme":
        yield f"{ASSUMED_DRIVES_PER_NODE} NVMe drives per node share the optimizer states"
