"""Reading the shipped tables."""

from shardwise.validate.rows import MeasurementRow, read_rows


def test_every_row_has_an_id_and_a_source():
    for table in ("cost", "components"):
        assert all(row.id and row.text("source") for row in read_rows(table))


def test_cells_are_read_as_what_they_are():
    cells = (("tp", "8"), ("mem", "62.5"), ("pp", ""), ("note", "~7"))
    row = MeasurementRow(id="X-1", family="X", cells=cells)
    assert row.integer("tp") == 8
    assert row.integer("mem") is None
    assert row.number("mem") == 62.5
    assert row.number("pp") is None
    assert row.number("note") is None
    assert row.text("absent") == ""
