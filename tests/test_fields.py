"""The record is the table of fields: each says once what it is, and no entry is missing."""

from dataclasses import dataclass, fields

import pytest

from rules.samples import make_plan
from shardwise.fields import ABOUT, plan_field, plan_fields
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.rules import find_refusals

RECORDS = (Recipe, Layout)


def silent_fields(record):
    """Fields that do not say what they are, or that hold what no plan file can."""
    said = {field.name: field for field in plan_fields(record) if field.help and field.kind != "record"}
    return [f"{record.__name__}.{field.name}" for field in fields(record) if field.name not in said]


@pytest.mark.parametrize("record", RECORDS)
def test_every_field_says_what_it_is(record):
    assert silent_fields(record) == []


def test_a_field_that_does_not_say_it_is_found():
    @dataclass
    class Extended:
        plain: int = 1
        nameless: int = plan_field(1, "")
        mapping: dict[str, int] | None = plan_field(None, "no value of a plan file")
        said: int = plan_field(1, "what it is")

    assert silent_fields(Extended) == ["Extended.plain", "Extended.nameless", "Extended.mapping"]


@pytest.mark.parametrize("record", RECORDS)
def test_defaults_are_in_range_and_among_the_choices(record):
    for field in plan_fields(record):
        if field.kind in ("count", "amount") and field.default is not None:
            assert field.lowest <= field.default <= field.highest
        if field.kind == "choice" and field.default is not None:
            assert field.default in field.choices


def test_what_another_field_switches_off_is_warned_about():
    """Every field of the recipe that needs another has a rule that says so; no rule asks fields of the layout."""
    assert [field.name for field in plan_fields(Layout) if field.needs is not None] == []
    needing = [field for field in plan_fields(Recipe) if field.needs is not None]
    values = {"lora_rank": 8, "lora_targets": "qv", "lora_dropout_fraction": 0.1, "recompute_layers": 4}
    values |= {"lora_alpha": 8.0, "use_rslora": True}
    assert sorted(values) == sorted(field.name for field in needing)
    for field in needing:
        assert field.needs.name in {other.name for other in plan_fields(Recipe)}
        warned = find_refusals(make_plan(**{field.name: values[field.name]}))
        assert [warning.severity for warning in warned] == ["warning"]
        assert f"changes nothing with {field.needs.name}=" in warned[0].message
        assert find_refusals(make_plan(**{field.name: values[field.name], field.needs.name: field.needs.value})) == ()


def test_a_plan_has_parts_with_names_of_their_own():
    parts = [field.name for field in fields(Plan) if ABOUT in field.metadata]
    assert parts == ["model", "cluster", "recipe", "layout", "engine"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lora_dropout_fraction": 2.0}, "lora_dropout_fraction=2.0 is outside 0 to 1"),
        ({"micro_batch_size": 2**21}, "micro_batch_size=2097152 is outside 1 to 1048576"),
    ],
)
def test_a_record_made_by_hand_has_the_ranges_of_a_plan_file(given, words):
    (refusal,) = find_refusals(make_plan(**given))
    assert (refusal.rule, refusal.message) == ("recipe-range", words)
