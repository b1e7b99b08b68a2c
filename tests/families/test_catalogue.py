"""The catalogue of models: every row counted, sourced, dated and reachable by each of its names."""

import json
import re
from dataclasses import replace
from importlib.resources import files

import pytest

from shardwise.families import load_models, read_model
from shardwise.families.names import PARTS

ENTRIES = load_models()


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_the_count_of_a_row_is_the_count_of_its_config(entry):
    model = read_model(entry.name)
    assert model.num_params == entry.num_params
    assert model.name == entry.name
    for alias in entry.aliases:
        assert replace(read_model(alias), name=model.name, spec_json=model.spec_json) == model


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_an_alias_is_answered_by_the_name_that_was_asked_for(entry):
    """qwen2.5-1.5b was answered as qwen2-1.5b, which shares its entry. A plan keeps the name when it is read again."""
    for alias in entry.aliases:
        model = read_model(alias)
        is_other = model.name != entry.name
        assert not is_other or set(PARTS.findall(model.name)) <= set(PARTS.findall(alias.lower().replace("_", ".")))
        assert (f"built as {entry.name} of the catalogue" in " ".join(model.assumptions)) == is_other
        assert read_model(json.loads(model.spec_json)) == model


@pytest.mark.parametrize("entry", ENTRIES, ids=[entry.name for entry in ENTRIES])
def test_a_published_figure_agrees_with_the_count(entry):
    """A figure in full digits must be equal; a rounded one must be within three percent of the total."""
    exact = re.match(r"[\d,]{9,}", entry.published)
    rounded = re.match(r"([\d.]+)([BM])\b", entry.published)
    if exact:
        assert entry.num_params == int(exact[0].replace(",", ""))
    elif rounded and not entry.model_type.startswith(("bert", "t5", "bart")):
        figure = float(rounded[1]) * {"B": 1e9, "M": 1e6}[rounded[2]]
        assert entry.num_params == pytest.approx(figure, rel=0.045)


def test_every_row_says_where_and_when_its_facts_were_read():
    for entry in ENTRIES:
        assert len(entry.source) > 10, entry.name
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", entry.date), entry.name


def test_no_name_means_two_models():
    spellings = [spelling.casefold() for entry in ENTRIES for spelling in (entry.name, *entry.aliases)]
    assert len(spellings) == len(set(spellings))


def test_every_config_has_a_row_and_every_row_a_config():
    folder = files("shardwise").joinpath("catalog/models")
    configs = {item.name.removesuffix(".json") for item in folder.iterdir() if item.name.endswith(".json")}
    assert configs - {"family_defaults"} == {entry.name for entry in ENTRIES}


def test_rows_are_in_order_of_their_names():
    assert [entry.name for entry in ENTRIES] == sorted(entry.name for entry in ENTRIES)


def test_the_catalogue_holds_the_models_people_ask_for():
    assert len(ENTRIES) >= 180
    for name in (
        "llama-3.2-1b",
        "qwen2.5-72b",
        "qwen3-235b-a22b",
        "gemma-3-27b",
        "phi-4",
        "gpt-oss-120b",
        "deepseek-v2",
    ):
        assert read_model(name).num_params > 0
