"""Rules about single numbers: a record with one outside its range cannot be planned with at all."""

from collections.abc import Iterable

from shardwise.fields import Field, plan_fields
from shardwise.layout import Layout
from shardwise.recipe import Recipe
from shardwise.rules.refusal import Changes
from shardwise.rules.rule import Rule

NUMBERS: dict[type, tuple[Field, ...]] = {
    record: tuple(field for field in plan_fields(record) if field.kind in ("count", "amount"))
    for record in (Layout, Recipe)
}


def _out_of_range(record: Layout | Recipe) -> list[Field]:
    """The fields with a number outside their range; a zero that means something has a rule of its own."""
    found = []
    for field in NUMBERS[type(record)]:
        value = getattr(record, field.name)
        if value is None or field.lowest <= value <= field.highest or (value == 0 and field.instead_of_zero):
            continue
        found.append(field)
    return found


def _message(record: Layout | Recipe) -> str:
    return ", ".join(
        f"{field.name}={getattr(record, field.name)} is outside {field.range_text}" for field in _out_of_range(record)
    )


def _mended(record: Layout | Recipe) -> Iterable[Changes]:
    """The defaults, and the example of a field that has none."""
    yield tuple(
        (field.name, int(field.example) if field.is_required else field.default) for field in _out_of_range(record)
    )


RULES = (
    Rule(
        name="layout-degree-range",
        why="A degree of parallelism counts ranks, so it is at least 1; ZeRO has the stages 0 to 3.",
        source="definition",
        breaks=lambda plan: bool(_out_of_range(plan.layout)),
        message=lambda plan: _message(plan.layout),
        candidates=lambda plan: _mended(plan.layout),
    ),
    Rule(
        name="recipe-range",
        why="Sequence length, batch sizes, ranks and chunks count things, so they are at least 1.",
        source="definition",
        breaks=lambda plan: bool(_out_of_range(plan.recipe)),
        message=lambda plan: _message(plan.recipe),
        candidates=lambda plan: _mended(plan.recipe),
    ),
)
