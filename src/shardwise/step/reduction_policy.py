"""When gradients are reduced: beside computation or after it, in every micro-batch or in the last one."""

from shardwise.engines.table import engine_profile
from shardwise.plan import Plan
from shardwise.step.native_engine import is_native_engine, uses_units


def shards_unit_by_unit(plan: Plan) -> bool:
    """Whether every block is gathered and reduced for itself, as FSDP and ZeRO-3 do, and not in buckets."""
    zero_stage = plan.layout.zero_stage
    return (zero_stage == 3) | ((zero_stage == 2) & is_torch(plan))


def communicates_unit_by_unit(plan: Plan) -> bool:
    """Whether gathers and reductions belong to units of the model and not to buckets.

    Our trainer's do wherever it has units, also those of whole states over one rank.
    """
    if is_native_engine(plan):
        return uses_units(layout=plan.layout, recipe=plan.recipe)
    return shards_unit_by_unit(plan)


def is_torch(plan: Plan) -> bool:
    """Whether torch's own FSDP and DDP reduce the gradients."""
    return engine_profile(plan.engine).is_torch


def overlaps_reductions(plan: Plan) -> bool:
    """Whether reductions run beside the backward pass.

    torch's DDP and FSDP always do, Megatron with ``--overlap-grad-reduce``, which its published runs of today set.
    DeepSpeed reduces beside computation only in stage 3 (``overlap_comm``, ``runtime/zero/config.py``); its pipeline
    and its stage 0 reduce when all backwards are done (``runtime/pipe/engine.py`` ``_exec_reduce_grads``,
    ``runtime/engine.py`` ``buffered_allreduce_fallback``).
    """
    asked = plan.recipe.overlap_grad_reduce
    if asked is not None:
        return asked
    return engine_profile(plan.engine).sharding != "deepspeed" or plan.layout.zero_stage == 3


def defers_reductions(plan: Plan) -> bool:
    """Whether accumulated gradients are reduced in the last micro-batch only.

    FSDP and ZeRO-2 and 3 divide gradients and reduce every micro-batch, unless told otherwise
    (``set_requires_gradient_sync``, ``no_sync``) or in a pipeline, whose stages keep whole gradients (torch
    ``pipelining/stage.py``). Whole gradients wait for the last one (DDP's ``no_sync`` in all engines, Megatron).
    Megatron-FSDP delays reductions of ``no_shard`` and ``optim`` alone (NVIDIA/Megatron-LM@00caa53af
    ``megatron_fsdp.py`` ``is_delay_grad_reduce``).
    """
    layout, is_pipeline = plan.layout, plan.layout.pp > 1
    if layout.defer_grad_reduce is not None:
        return is_pipeline | layout.defer_grad_reduce
    return is_pipeline | (layout.zero_stage < 2)


def needs_norm(plan: Plan) -> bool:
    """Whether updates wait for something that all ranks add up: the norm, or whether an fp16 gradient is infinite.

    Our trainer adds up the loss, too, and scales by the tokens of all ranks, whether it clips or not.
    """
    recipe = plan.recipe
    is_own = is_native_engine(plan) and recipe.adapter == "none"
    return recipe.clip_gradients or recipe.precision == "fp16-mixed" or is_own
