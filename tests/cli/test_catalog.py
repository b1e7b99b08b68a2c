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


def test_a_model_is_shown_with_its_shape_and_counts(capsys):
    shape = answer(["catalog", "show", "deepseek-v3-671b"], capsys)["shape"]
    assert (shape["hidden_size"], shape["num_hidden_layers"], shape["experts"][0]["num_experts"]) == (7168, 61, 256)
    assert main(["catalog", "show", "meta-llama/Llama-3.1-8B"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for line in ("num_params 8,030,261,248", "hidden_size 4,096", "num_key_value_heads 8", "intermediate_size 14,336"):
        assert line in printed


def test_an_id_that_is_only_a_part_points_to_the_listings_that_have_it(capsys):
    assert main(["catalog", "show", "h100"]) == 2
    assert "fix: choose an id from `shardwise catalog gpus h100` or " in capsys.readouterr().err


def test_the_nodes_say_whose_price_they_show(capsys):
    """ND96amsr_A100_v4 has no price of its own in the book; ND96asr_v4 has its list price."""
    assert main(["catalog", "nodes", "azure"]) == 0
    prices = {line.split()[0]: line.split()[-1] for line in capsys.readouterr().out.splitlines() if "nd" in line}
    assert prices["azure-nd96asr-v4"] == "$3.40"
    assert prices["azure-nd96amsr-a100-v4"] == "$1.39~"
    assert prices["azure-nd128isr-gb200-v6"] == "$16.00*"
