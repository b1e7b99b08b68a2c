"""Rules about the kernel of attention: where it runs, and what it cannot do."""

from collections.abc import Iterable

from shardwise.attention_kernels import ATTENTION_KERNELS, AttentionKernel
from shardwise.engines.table import engine_profile
from shardwise.plan import Plan
from shardwise.rules.refusal import Changes
from shardwise.rules.rule import Rule


def _title(kernel: AttentionKernel | None) -> str:
    return ATTENTION_KERNELS[kernel].title if kernel else ""


def _breaks_part(plan: Plan) -> bool:
    kernel = plan.recipe.attention_kernel
    return kernel is not None and not ATTENTION_KERNELS[kernel].runs_on(plan.cluster.gpu.arch)


def _part_message(plan: Plan) -> str:
    kernel, gpu = plan.recipe.attention_kernel, plan.cluster.gpu
    kernels = ", ".join(name for name, kind in ATTENTION_KERNELS.items() if kind.runs_on(gpu.arch))
    return f"attention_kernel={kernel}: {_title(kernel)} does not run on {gpu.id} ({gpu.arch}), which runs {kernels}"


def _breaks_eager(plan: Plan) -> bool:
    return plan.recipe.attention == "eager" and plan.recipe.attention_kernel not in (None, "math")


def _eager_message(plan: Plan) -> str:
    kernel = plan.recipe.attention_kernel
    return f"attention_kernel={kernel} computes scores inside one kernel, but attention=eager writes them out"


def _eager_candidates(plan: Plan) -> Iterable[Changes]:
    yield (("attention", "flash"),)
    yield from _candidates(plan)


def _breaks_dropout(plan: Plan) -> bool:
    kernel = plan.recipe.attention_kernel
    return (
        kernel is not None and plan.model.attention_dropout_fraction > 0 and not ATTENTION_KERNELS[kernel].has_dropout
    )


def _dropout_message(plan: Plan) -> str:
    kernel, fraction = plan.recipe.attention_kernel, plan.model.attention_dropout_fraction
    return (
        f"attention_kernel={kernel}: {_title(kernel)} drops nothing out, and {plan.model.name} has attention dropout "
        f"{fraction:g}"
    )


def _candidates(plan: Plan) -> Iterable[Changes]:
    """The engine's kernel by name, so that a reader sees what runs; else whatever the engine chooses."""
    yield (("attention_kernel", engine_profile(plan.engine).default_attention_kernel(plan.cluster.gpu.arch)),)
    yield (("attention_kernel", None),)


RULES = (
    Rule(
        name="recipe-attention-kernel-part",
        why="Kernels of attention are written for the matrix units of one or a few architectures.",
        source="shardwise/attention_kernels.py, each record with the source it was read in",
        breaks=_breaks_part,
        message=_part_message,
        candidates=_candidates,
    ),
    Rule(
        name="recipe-attention-kernel-eager",
        why="Eager attention is no kernel: it writes scores to memory and reads them again.",
        source="definition of attention and attention_kernel",
        breaks=_breaks_eager,
        message=_eager_message,
        candidates=_eager_candidates,
    ),
    Rule(
        name="recipe-attention-kernel-dropout",
        why="FlashAttention-3, FlashAttention-4 and FlexAttention take no dropout probability.",
        source="Dao-AILab/flash-attention hopper/flash_attn_interface.py; huggingface/transformers#42404; torch 2.13 "
        "nn/attention/flex_attention.py",
        breaks=_breaks_dropout,
        message=_dropout_message,
        candidates=_candidates,
    ),
)
