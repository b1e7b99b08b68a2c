"""Rules about number formats: what the hardware multiplies, and what a model survives."""

from collections.abc import Iterable

from shardwise.cluster import Dtype, Gpu
from shardwise.plan import Plan
from shardwise.recipe import Precision
from shardwise.rules.refusal import Changes
from shardwise.rules.rule import Rule

LARGEST_FP16 = 65504.0
"""IEEE 754 binary16."""

FP16_OVERFLOWING_FAMILIES = ("t5", "mt5", "umt5", "longt5", "gemma")
"""Families trained in bf16 whose activations exceed fp16's range in the forward pass.

Source: huggingface/transformers issue 5651 (an activation of 66246 in T5) and issue 36822 (Gemma 3).
"""


def _lacks(gpu: Gpu, dtype: Dtype) -> bool:
    """Whether the part's 16-bit peaks are known and ``dtype`` has none; unknown peaks refuse nothing."""
    if gpu.peak_flop_per_s(dtype) > 0:
        return False
    return gpu.peak_flop_per_s("bf16") > 0 or gpu.peak_flop_per_s("fp16") > 0


def _breaks_fp8(plan: Plan) -> bool:
    return plan.recipe.precision == "fp8-mixed" and _lacks(plan.cluster.gpu, "fp8")


def _fp8_message(plan: Plan) -> str:
    return f"precision fp8-mixed, but {plan.cluster.gpu.name} ({plan.cluster.gpu.arch}) has no fp8 matrix unit"


def _breaks_bf16(plan: Plan) -> bool:
    return plan.recipe.precision in ("bf16-mixed", "bf16") and _lacks(plan.cluster.gpu, "bf16")


def _bf16_message(plan: Plan) -> str:
    gpu = plan.cluster.gpu
    return f"precision {plan.recipe.precision}, but {gpu.name} ({gpu.arch}) has no bf16 matrix unit"


def _breaks_fp16(plan: Plan) -> bool:
    return plan.recipe.precision == "fp16-mixed" and _lacks(plan.cluster.gpu, "fp16")


def _fp16_message(plan: Plan) -> str:
    gpu = plan.cluster.gpu
    return f"precision fp16-mixed, but the catalogue knows no fp16 matrix peak of {gpu.name} ({gpu.arch})"


def _supported(plan: Plan) -> Iterable[Changes]:
    order: tuple[Precision, ...] = ("bf16-mixed", "fp16-mixed", "fp32")
    for precision in order:
        if precision != plan.recipe.precision:
            yield (("precision", precision),)


def _breaks_family(plan: Plan) -> bool:
    if plan.recipe.precision != "fp16-mixed":
        return False
    return plan.model.model_type.startswith(FP16_OVERFLOWING_FAMILIES)


def _family_message(plan: Plan) -> str:
    return (
        f"precision fp16-mixed with {plan.model.model_type}: its activations exceed {LARGEST_FP16:g}, the largest "
        f"finite fp16 number, so the loss becomes NaN whatever the loss scale"
    )


def _wider_range(plan: Plan) -> Iterable[Changes]:
    if not _lacks(plan.cluster.gpu, "bf16"):
        yield (("precision", "bf16-mixed"),)
    yield (("precision", "fp32"),)


RULES = (
    Rule(
        name="recipe-fp8-hardware",
        why="fp8 matrix units arrived with Hopper, Ada and CDNA3; earlier parts cannot run the recipe.",
        source="catalogue of accelerators: no fp8 peak",
        reads=("precision",),
        breaks=_breaks_fp8,
        message=_fp8_message,
        candidates=_supported,
    ),
    Rule(
        name="recipe-bf16-hardware",
        why="Volta and Turing multiply fp16 only; bf16 there runs outside the matrix units, several times slower.",
        source="catalogue of accelerators: no bf16 peak",
        reads=("precision",),
        breaks=_breaks_bf16,
        message=_bf16_message,
        candidates=_supported,
    ),
    Rule(
        name="recipe-fp16-hardware",
        severity="warning",
        why="Some parts are built around bf16 and state no fp16 matrix peak, so no step time can be trusted.",
        source="catalogue of accelerators: no fp16 peak",
        breaks=_breaks_fp16,
        message=_fp16_message,
        candidates=_supported,
    ),
    Rule(
        name="recipe-fp16-family",
        severity="warning",
        why="T5 and Gemma were trained in bf16; their activations overflow fp16 in the forward pass, where loss "
        "scaling cannot help.",
        source="huggingface/transformers issues 5651 and 36822",
        breaks=_breaks_family,
        message=_family_message,
        candidates=_wider_range,
    ),
)
