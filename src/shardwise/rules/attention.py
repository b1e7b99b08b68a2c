"""Rules about the kernel of attention: where it runs, and what it cannot do."""

from collections.abc import Iterable
from dataclasses import replace

from shardwise.attention_kernels import ATTENTION_KERNELS, AttentionKernel
from shardwise.plan import Plan
from shardwise.rules.refusal import Changes, change
from shardwise.rules.rule import Rule
from shardwise.step.attention_kernel import attention_call, divides_by_flash_attention, engines_kernel


def _title(kernel: AttentionKernel | None) -> str:
    return ATTENTION_KERNELS[kernel].title if kernel else ""


def _breaks_part(plan: Plan) -> bool:
    kernel = plan.recipe.attention_kernel
    return kernel is not None and not ATTENTION_KERNELS[kernel].runs_on(plan.cluster.gpu.arch)


def _part_message(plan: Plan) -> str:
    kernel, gpu = plan.recipe.attention_kernel, plan.cluster.gpu
    kernels = ", ".join(name for name, kind in ATTENTION_KERNELS.items() if kind.runs_on(gpu.arch))
    return f"attention_kernel={kernel}: {_title(kernel)} does not run on {gpu.id} ({gpu.arch}), which runs {kernels}"


def _breaks_ring(plan: Plan) -> bool:
    return divides_by_flash_attention(plan) and not ATTENTION_KERNELS["fa2"].runs_on(plan.cluster.gpu.arch)


def _ring_message(plan: Plan) -> str:
    gpu = plan.cluster.gpu
    return f"cp={plan.layout.cp} attends by FlashAttention-2, which does not run on {gpu.id} ({gpu.arch})"


def _breaks_call(plan: Plan) -> bool:
    kernel, call = plan.recipe.attention_kernel, attention_call(plan)
    if kernel is None or not ATTENTION_KERNELS[kernel].runs_on(call.arch):
        return False
    return not ATTENTION_KERNELS[kernel].computes(replace(call, dropout_fraction=0.0))


def _call_message(plan: Plan) -> str:
    kernel, call = plan.recipe.attention_kernel, attention_call(plan)
    heads = f"heads of {call.head_dim}"
    if call.v_head_dim != call.head_dim:
        heads += f" with values of {call.v_head_dim}"
    title, precision = _title(kernel), plan.recipe.precision
    return f"attention_kernel={kernel}: {title} does not compute {heads} in {precision} on {plan.cluster.gpu.id}"


def _breaks_eager(plan: Plan) -> bool:
    return plan.recipe.attention == "eager" and plan.recipe.attention_kernel not in (None, "math")


def _eager_message(plan: Plan) -> str:
    kernel = plan.recipe.attention_kernel
    return f"attention_kernel={kernel} computes scores inside one kernel, but attention=eager writes them out"


def _eager_candidates(plan: Plan) -> Iterable[Changes]:
    yield (("attention", "flash"),)
    yield from _candidates(plan)


def _breaks_dropout(plan: Plan) -> bool:
    kernel, call = plan.recipe.attention_kernel, attention_call(plan)
    return kernel is not None and not ATTENTION_KERNELS[kernel].drops_out(call)


def _dropout_message(plan: Plan) -> str:
    kernel, fraction = plan.recipe.attention_kernel, plan.model.attention_dropout_fraction
    return (
        f"attention_kernel={kernel}: {_title(kernel)} {_drops(kernel)}, and {plan.model.name} has attention dropout "
        f"{fraction:g}"
    )


def _drops(kernel: AttentionKernel | None) -> str:
    smallest = ATTENTION_KERNELS[kernel].smallest_dropout_fraction if kernel else None
    return f"drops out in steps of {smallest:g}" if smallest else "drops nothing out"


def _candidates(plan: Plan) -> Iterable[Changes]:
    """The engine's kernel by name, so that a reader sees what runs; else whatever the engine chooses."""
    yield (("attention_kernel", engines_kernel(plan)),)
    yield (("attention_kernel", None),)


RULES = (
    Rule(
        name="recipe-attention-kernel-part",
        why="Kernels of attention are written for the matrix units of one or a few architectures.",
        source="shardwise/attention_kernels.py, each record with the source it was read in",
        reads=("attention_kernel",),
        breaks=_breaks_part,
        message=_part_message,
        candidates=_candidates,
    ),
    Rule(
        name="recipe-attention-kernel-heads",
        why="Fused kernels are compiled for a few sizes of heads, most of them in 16 bits alone.",
        source="shardwise/attention_kernels.py, each record with the source it was read in",
        reads=("attention_kernel", "precision"),
        breaks=_breaks_call,
        message=_call_message,
        candidates=_candidates,
    ),
    Rule(
        name="layout-cp-flash-attention",
        engines=("native",),
        why="Our trainer divides the sequence with FlashAttention-2, whose causal mask is aligned to the last key.",
        source="shardwise/train/context_parallel.py; pytorch/pytorch@001f694 sdp_utils.cpp (sm80 and newer)",
        reads=("cp", "precision"),
        breaks=_breaks_ring,
        message=_ring_message,
        candidates=(change(cp=1),),
    ),
    Rule(
        name="recipe-attention-kernel-eager",
        why="Eager attention is no kernel: it writes scores to memory and reads them again.",
        source="definition of attention and attention_kernel",
        reads=("attention", "attention_kernel"),
        breaks=_breaks_eager,
        message=_eager_message,
        candidates=_eager_candidates,
    ),
    Rule(
        name="recipe-attention-kernel-dropout",
        why="FlashAttention-3, FlashAttention-4 and FlexAttention take no dropout probability; cuDNN takes sixteenths.",
        source="Dao-AILab/flash-attention hopper/flash_attn_interface.py; huggingface/transformers#42404; torch 2.13 "
        "nn/attention/flex_attention.py; pytorch/pytorch@001f694 sdp_utils.cpp (check_cudnn_dropout)",
        reads=("attention_kernel", "precision"),
        breaks=_breaks_dropout,
        message=_dropout_message,
        candidates=_candidates,
    ),
)
