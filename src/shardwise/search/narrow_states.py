"""States that take fewer bytes: moments in 8 bits, weights in 16 as well, and a frozen base in 4."""

from collections.abc import Iterator

from shardwise.engines.table import ENGINES
from shardwise.optimizers import eight_bit_form
from shardwise.plan import Plan
from shardwise.rules import Changes

__all__ = ["narrow_states"]


def narrow_states(question: Plan) -> Iterator[Changes]:
    """Changes after which states take fewer bytes, from what changes least: what people run on cards of 24 GB.

    Where every weight is trained, moments in 8 bits beside fp32 weights come first, then weights in bf16 as well.
    Beside LoRA's adapters it is a base of 4 bits.
    """
    recipe, engine = question.recipe, ENGINES[question.engine]
    if recipe.adapter == "lora" and "qlora" in engine.adapters:
        yield (("adapter", "qlora"),)
    if recipe.adapter != "none":
        return
    narrow = eight_bit_form(recipe.optimizer)
    moments: Changes = () if narrow is None or narrow not in engine.optimizers else (("optimizer", narrow),)
    if moments:
        yield moments
    if recipe.precision == "bf16-mixed" and "bf16" in engine.precisions:
        yield (*moments, ("precision", "bf16"))
