"""Options map one to one to records: same names, same choices; and the list of all options is frozen."""

from argparse import ArgumentTypeError
from dataclasses import fields
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from golden_files import assert_golden
from shardwise.cli import plan as plan_command
from shardwise.cli.command import COMMANDS, make_parser
from shardwise.cli.help_page import option_names
from shardwise.cli.options import count, sequence_length, whole_count
from shardwise.engines.table import ENGINES, EngineName
from shardwise.fields import field_named
from shardwise.layout import Layout
from shardwise.recipe import Recipe
from shardwise.search import OBJECTIVES, SearchBounds

PARSERS = {entry.name: make_parser(entry, entry.load()) for entry in COMMANDS}
RECIPE_FIELDS = [field.name for field in fields(Recipe)]
LAYOUT_FIELDS = [field.name for field in fields(Layout)]


def option(command: str, field: str):
    """The option that sets a field, found by its name."""
    name = f"--{field.replace('_', '-')}"
    return next((action for action in PARSERS[command]._actions if name in action.option_strings), None)


@pytest.mark.parametrize("command", ["predict", "explain"])
@pytest.mark.parametrize("field", [*RECIPE_FIELDS, *LAYOUT_FIELDS, "engine"])
def test_every_field_of_recipe_and_layout_has_an_option_of_its_name(command, field):
    assert option(command, field) is not None
    assert option(command, field).dest == field


@pytest.mark.parametrize("field", [*RECIPE_FIELDS, *(field.name for field in fields(SearchBounds))])
def test_every_field_of_recipe_and_bounds_has_an_option_of_the_search(field):
    if field == "max_plans":
        assert option("plan", "top") is not None
    elif field != "max_predictions":
        assert option("plan", field) is not None


@pytest.mark.parametrize("record", [Recipe, Layout])
def test_choices_are_those_of_the_record(record):
    hints = get_type_hints(record)
    for field in fields(record):
        choices = get_args(hints[field.name])
        if choices and all(isinstance(choice, str) for choice in choices):
            assert tuple(option("predict", field.name).choices) == choices


def test_engines_and_objectives_are_those_of_the_records():
    assert tuple(option("plan", "engine").choices) == get_args(EngineName)
    assert plan_command.OBJECTIVES == OBJECTIVES


def test_nothing_has_a_default_that_would_win_over_a_plan_file():
    arguments = vars(PARSERS["predict"].parse_args(["plan.json"]))
    assert {name for name in [*RECIPE_FIELDS, *LAYOUT_FIELDS, "engine"] if arguments[name] is not None} == set()


def test_the_list_of_options_is_frozen():
    lines = [f"{command} {name}" for command, parser in PARSERS.items() for name in option_names(parser)]
    assert_golden(Path(__file__).parent / "golden" / "options.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("text", "amount"),
    [("15e12", 15e12), ("15T", 15e12), ("1t", 1e12), ("500B", 5e11), ("3.5e9", 3.5e9), ("70_000", 7e4)],
)
def test_amounts_are_read_as_people_write_them(text, amount):
    assert count(text) == amount


def test_the_help_of_the_schedule_says_what_the_engines_offer():
    """As shardwise/engines has it; zb-h2 is in Megatron's fork alone."""
    torch_only = {schedule for schedule in ENGINES["native"].schedules if schedule not in ENGINES["megatron"].schedules}
    assert ENGINES["native"].schedules == ENGINES["torchtitan"].schedules
    assert torch_only == {"gpipe", "zb-h1", "zbv", "dualpipev"}
    assert ENGINES["megatron"].schedules == {"1f1b", "interleaved"}
    assert ENGINES["megatron"].forked_schedules == {"zb-h1", "zb-h2", "zbv"}
    assert ENGINES["deepspeed"].schedules == {"1f1b"}
    for words in ("gpipe, zb-h1, zbv and dualpipev with native", "zb-h1, zb-h2 and zbv with its fork"):
        assert words in option("predict", "schedule").help


@pytest.mark.parametrize(("text", "number"), [("8192", 8192), ("8K", 8000), ("1M", 10**6), ("-3", -3), ("1e6", 10**6)])
def test_batches_take_the_suffixes_of_amounts(text, number):
    assert whole_count(text) == number


@pytest.mark.parametrize(
    ("text", "number"), [("8192", 8192), ("8K", 8192), ("128k", 131_072), ("1M", 2**20), ("-3", -3), ("1e6", 10**6)]
)
def test_lengths_of_sequences_are_said_in_powers_of_two(text, number):
    assert sequence_length(text) == number


@pytest.mark.parametrize("command", [name for name in PARSERS if option(name, "seq_len")])
def test_every_length_of_sequences_is_read_as_one(command):
    assert option(command, "seq_len").type is sequence_length


def test_only_options_say_that_lengths_have_suffixes():
    """A plan file and a keyword of Python take whole numbers."""
    assert "128K" in option("plan", "seq_len").help
    assert "128K" not in field_named(Recipe, "seq_len").help


@pytest.mark.parametrize("text", ["1.5", "0.0005K", "nan", "inf", "8Q", ""])
def test_what_is_no_whole_number_is_refused(text):
    with pytest.raises(ArgumentTypeError, match="is not a whole number"):
        whole_count(text)
    with pytest.raises(ArgumentTypeError, match="is not a whole number"):
        sequence_length(text)
