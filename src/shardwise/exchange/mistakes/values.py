"""Values of the wrong kind, formats that the card lacks, and names the model lacks."""

from collections.abc import Iterator, Mapping

from shardwise.exchange.mistakes.model_parts import fused_projection
from shardwise.exchange.mistakes.rule import Case, Conditions, Found

WITH_BLOCKS = ("deepspeed", "gpt-neox")
"""Tools whose formats are blocks with a switch inside."""
TEXT_FOR = {"true": "true", "false": "false"}
ALLOWED: Mapping[str, tuple[str, ...]] = {
    "training.mixed_precision_reduce": ("float32",),
    "training.dtype": ("bfloat16", "float32"),
    "training.mixed_precision_param": ("bfloat16", "float32"),
    "parallelism.fsdp_reshard_after_forward": ("default", "always", "never"),
    "activation_checkpoint.mode": ("selective", "full", "memory_budget", "none"),
    "optimizer.implementation": ("for-loop", "foreach", "fused"),
    "optimizer.name": ("Adam", "AdamW"),
}
"""Values that torchtitan 0.2.2 takes (config/job_config.py)."""


def _quoted(case: Case) -> Iterator[Found]:
    for view in case.views("deepspeed", "gpt-neox", "accelerate", "training-arguments", "trl", "axolotl"):
        for fact in view.by_key.values() if not view.is_line else ():
            if isinstance(fact.value, str) and fact.value.lower() in TEXT_FOR:
                yield Found(
                    fact.place,
                    f'"{fact.value}" is a text, and a text that is not empty counts as true',
                    f'{TEXT_FOR[fact.value.lower()]} without quotes, or "auto"',
                )


def _both_formats(case: Case) -> Iterator[Found]:
    for view in case.views():
        keys = ("bf16.enabled", "fp16.enabled") if view.tool.name in WITH_BLOCKS else ("bf16", "fp16")
        if all(view.value(key) is True for key in keys):
            yield Found(view.by_key[keys[1]].place, "bf16 and fp16 are both on", f"{keys[1]}: false")


def _not_on_the_card(case: Case) -> Iterator[Found]:
    if case.cluster is None:
        return
    peaks = {peak.dtype for peak in case.cluster.node.gpu.peaks}
    for view in case.views():
        for key in ("bf16", "bf16.enabled", "mixed_precision"):
            is_asked = view.value(key) is True or (key == "mixed_precision" and view.text(key) == "bf16")
            if is_asked and peaks and "bf16" not in peaks:
                yield Found(
                    view.by_key[key].place,
                    f"bf16 is asked for, and {case.cluster.node.gpu.name} computes none",
                    "bf16: false and fp16: true, in every file that says one",
                )


def _formats_disagree(case: Case) -> Iterator[Found]:
    for one in case.reading.contradictions:
        files = {claim.place.partition(":")[0] for claim in (one.first, one.second)}
        if one.first.field == "precision" and len(files) > 1:  # in one file, both formats are on
            yield Found(
                one.second.place,
                f"{one.second.value} here, {one.first.value} by {one.first.place}",
                'the same format in both, or "auto" in the DeepSpeed JSON',
            )


def _not_allowed(case: Case) -> Iterator[Found]:
    for view in case.views("torchtitan"):
        for key, allowed in ALLOWED.items():
            if key in view.by_key and str(view.value(key)) not in allowed:
                yield Found(
                    view.by_key[key].place,
                    f"0.2.2 takes {', '.join(allowed)}, not {view.value(key)}",
                    f'{key.partition(".")[2]} = "{allowed[0]}"',
                )


def _early_step(case: Case) -> Iterator[Found]:
    fact = case.fact("optimizer.early_step_in_backward", "torchtitan")
    if fact and fact.value is True and case.number("pp") > 1:
        yield Found(
            fact.place,
            "an optimizer that steps within backward cannot go with a pipeline",
            "early_step_in_backward = false",
        )


def _width_times_three(case: Case) -> Iterator[Found]:
    for view in case.views("gpt-neox"):
        width, hidden = view.number("intermediate_size"), view.number("hidden_size")
        rounds_up = (view.number("mlp_multiple_of") or 1) > (width or 0) // 3  # to the width that is meant
        if view.text("activation") in ("swiglu", "geglu") and width and hidden and width < 6 * hidden and not rounds_up:
            yield Found(
                view.by_key["intermediate_size"].place,
                (
                    f"with {view.text('activation')} intermediate_size is three times the width of Hugging Face's "
                    f"config: another model is built, with {width // 3} in place of {width}"
                ),
                f'"intermediate_size": {3 * width}',
            )


def _targets(case: Case) -> Iterator[Found]:
    for view in case.views():
        for key in ("lora_target", "lora_target_modules", "target_modules"):
            words = view.text(key).replace(",", " ").split()
            fused = fused_projection(case.model, str(case.reading.value("model") or ""))
            if fused and {"q_proj", "k_proj", "v_proj"} & set(words) and fused.lower() not in words:
                yield Found(
                    view.by_key[key].place,
                    f"queries, keys and values of this model are one matrix, {fused}",
                    f"{key}: {fused}",
                )


CONDITIONS: Conditions = (
    ("field-meaning", _width_times_three),
    ("wrong-type", _quoted),
    ("both-formats", _both_formats),
    ("precision-not-on-card", _not_on_the_card),
    ("formats-disagree", _formats_disagree),
    ("value-not-allowed", _not_allowed),
    ("early-step-in-pipeline", _early_step),
    ("target-not-in-model", _targets),
)
