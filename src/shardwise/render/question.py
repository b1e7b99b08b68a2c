"""The question as it was understood, which every answer repeats in the same lines."""

from collections.abc import Set as AbstractSet

from rich.text import Text

from shardwise.plan import Plan
from shardwise.render.names import (
    attention_text,
    calibration_lines,
    cluster_text,
    layout_text,
    routing_text,
    settings_text,
    short_model_text,
    value_text,
)
from shardwise.render.screen_lines import UNBROKEN, lines_of
from shardwise.units import format_count

SETTINGS_INDENT = " " * len("layout  ")


def question_lines(
    plan: Plan, width: int, *, assumed: AbstractSet[str] = frozenset(), place: str | None = None
) -> list[Text]:
    """Model, hardware, sequence length, batch, precision, engine and kernels; a star marks what nobody gave.

    Args:
        plan: what was asked, or what answers it.
        width: columns of a line.
        assumed: fields of the question that nobody gave, beside those that the plan says were filled in.
        place: the hardware, where it is not the plan's cluster alone.
    """
    assumed = assumed | _filled_in(plan)
    legend = f" (*{UNBROKEN}assumed)" if assumed else ""
    hardware = _marked(place or cluster_text(plan.cluster), "cluster", assumed)
    title, asked = f"{short_model_text(plan.model)} on {hardware}", question_words(plan, assumed=assumed)
    title, asked = (f"{title}{legend}", asked) if len(title + legend) <= width else (title, f"{asked}{legend}")
    return [
        *lines_of(title, width=width, most=2),
        *lines_of(asked, width=width, most=3, indent=""),
        *lines_of("; ".join(calibration_lines(plan.cluster)), width=width, most=2),
    ]


def plan_lines(plan: Plan, width: int, *, assumed: AbstractSet[str] = frozenset()) -> list[Text]:
    """The question, then the layout and the settings of the plan that answers it."""
    return [
        *question_lines(plan, width, assumed=assumed),
        *lines_of(layout_text(plan.layout), width=width, most=3, label="layout  ", indent=SETTINGS_INDENT),
        *lines_of(settings_text(plan), width=width, most=4, label="recipe  ", indent=SETTINGS_INDENT),
    ]


def question_words(plan: Plan, *, assumed: AbstractSet[str] = frozenset()) -> str:
    """Everything that is asked beside the model and the hardware."""
    recipe = plan.recipe

    def marked(name: str, text: str) -> str:
        return _marked(text, name, assumed)

    kernel_star = "*" if {"attention", "attention_kernel"} <= assumed else ""
    sequences = plan.global_batch_size
    rank, targets = marked("lora_rank", str(recipe.lora_rank)), marked("lora_targets", recipe.lora_targets)
    parts = [
        marked("seq_len", f"{recipe.seq_len:,}") + " tokens a sequence",
        f"{marked('global_batch_size', f'{sequences:,}')} sequence{'s' * (sequences != 1)} "
        f"({plan.tokens_per_step:,} tokens) a step",
        *([f"{format_count(recipe.tokens)} tokens in all"] if recipe.tokens else []),
        marked("precision", recipe.precision),
        marked("optimizer", recipe.optimizer),
        *([] if recipe.adapter == "none" else [f"{recipe.adapter} of rank {rank} on {targets}"]),
        marked("engine", plan.engine),
        marked("compile", f"compile {value_text(recipe.compile)}"),
        *([attention_text(plan) + kernel_star] if plan.model.attention else []),
        routing_text(plan),
    ]
    return ", ".join(filter(None, parts))


def _filled_in(plan: Plan) -> frozenset[str]:
    """Fields that a plan's own assumptions are about, and the cluster where parts of it are assumed."""
    names = {sentence.partition("=")[0] for sentence in plan.assumptions}
    return frozenset(names | ({"cluster"} if plan.cluster.assumptions else set()))


def _marked(text: str, name: str, assumed: AbstractSet[str]) -> str:
    return f"{text}*" if name in assumed else text
