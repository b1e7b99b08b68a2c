"""Tables in narrow terminals: stacked where they would be cut, and as they are where they fit."""

import pytest
from rich.table import Table

from render.sample_records import PLAN, PREDICTION
from shardwise.catalog import load_gpus, load_nodes
from shardwise.render.terminal import TextStyle, page_text, plain_table
from shardwise.render.text_catalog import gpus_text, nodes_text
from shardwise.render.text_prediction import prediction_text


def sample_table() -> Table:
    table = plain_table(title="Parts")
    table.add_column("id", no_wrap=True)
    table.add_column("what it is")
    table.add_row("h100-sxm-with-a-long-name", "a part with a long description")
    return table


def test_a_table_that_does_not_fit_is_stacked_with_its_title_and_headings():
    lines = page_text([sample_table()], style=TextStyle(width=36)).splitlines()
    assert lines[:3] == ["Parts", "id: h100-sxm-with-a-long-name", "what it is: a part with a long"]


def test_a_table_that_fits_stays_a_table():
    assert page_text([sample_table()], style=TextStyle(width=60)).splitlines()[2].startswith("─")


@pytest.mark.parametrize("width", [30, 40, 60, 79])
def test_no_cell_is_lost_in_a_narrow_terminal(width):
    style = TextStyle(width=width)
    for text in (gpus_text(load_gpus(), style=style), nodes_text(load_nodes(), style=style)):
        assert "…" not in text
        assert max(len(line) for line in text.splitlines()) <= width
    words = "".join(nodes_text(load_nodes(), style=style).split())
    assert [node.id for node in load_nodes() if node.id not in words] == []


@pytest.mark.parametrize("width", [40, 60])
def test_a_prediction_fits_a_narrow_terminal_with_its_bars_whole(width):
    lines = prediction_text(plan=PLAN, prediction=PREDICTION, style=TextStyle(width=width)).splitlines()
    assert max(len(line) for line in lines) <= width
    bars = [line for line in lines if line.startswith("stage ")]
    assert bars
    assert all("|" in line and line.endswith("GiB") for line in bars)
