"""``shardwise catalog``: sections, words, one entry, and hardware without a price."""

import json

import pytest

from shardwise.cli.catalog import SECTIONS
from shardwise.cli.main import main


def answer(words, capsys):
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_without_a_section_the_sizes_of_all_are_shown(capsys):
    sizes = answer(["catalog"], capsys)["sections"]
    assert tuple(sizes) == SECTIONS
    assert min(sizes.values()) > 10


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_has_rows_with_source_and_date(section, capsys):
    written = answer(["catalog", section], capsys)
    assert list(written) == ["schema", "section", "rows"]
    assert written["schema"] == "shardwise.catalog/1"
    assert [row for row in written["rows"] if not (row["source"] and row["date"])] == []


@pytest.mark.parametrize("section", SECTIONS)
def test_every_section_prints_within_eighty_columns(section, capsys):
    assert main(["catalog", section]) == 0
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


def test_a_word_keeps_the_rows_that_contain_it(capsys):
    assert {row["id"] for row in answer(["catalog", "gpus", "H200"], capsys)["rows"]} == {
        "gh200-96",
        "gh200-141",
        "h200-sxm",
        "h200-nvl",
    }


def test_an_entry_is_shown_with_its_references(capsys):
    written = answer(["catalog", "show", "h100-sxm"], capsys)
    assert written["rows"][0]["memory_bandwidth_bytes_per_s"] == 3.35e12
    assert written["references"]


def test_an_entry_prints_units_in_its_field_names(capsys):
    assert main(["catalog", "show", "h100-sxm"]) == 0
    printed = capsys.readouterr().out
    assert "memory_bandwidth_bytes_per_s    3,350,000,000,000" in printed
