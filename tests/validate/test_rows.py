"""Reading the shipped tables."""

import pytest

from shardwise.errors import ShardwiseError
from shardwise.validate.rows import MeasurementRow, read_rows


def test_the_tables_have_the_rows_they_were_published_with():
    counts = {table: len(read_rows(table)) for table in ("memory", "runs", "throughput", "cost")}
    assert counts == {"memory": 496, "runs": 298, "throughput": 2757, "cost": 69}


def test_every_row_has_an_id_a_source_and_where_known_a_date():
    for table in ("memory", "runs", "throughput", "cost", "readings", "components", "recipes"):
        for row in read_rows(table):
            assert row.id
            assert row.text("source")


def test_a_table_that_is_not_shipped_is_an_error_that_names_the_others():
    with pytest.raises(ShardwiseError, match="memory, runs, throughput, cost") as caught:
        read_rows("speed")
    assert caught.value.code == "validate-table"
    assert caught.value.fix == "use table='memory'"


def test_cells_are_read_as_what_they_are():
    row = MeasurementRow(table="memory", id="X-1", cells=(("tp", "8"), ("mem", "62.5"), ("pp", ""), ("note", "~7")))
    assert row.integer("tp") == 8
    assert row.integer("mem") is None
    assert row.number("mem") == 62.5
    assert row.number("pp") is None
    assert row.number("note") is None
    assert row.text("absent") == ""


def test_the_family_of_a_run_is_the_repository_that_published_it():
    families = {row.family for row in read_rows("runs")}
    assert families == {
        "RUNTITAN",
        "RUNMPT",
        "RUNLITGPT",
        "RUNFMS",
        "RUNQLORA",
        "RUNTUNE",
        "RUNBRIDGE",
        "RUNSIMU",
    }
