"""Reading the tables of the sources."""

from benchmarks.published.rows import read_rows


def test_every_row_has_an_id_a_family_and_a_source():
    for table in ("memory", "runs", "throughput", "readings", "recipes"):
        for row in read_rows(table):
            assert row.id
            assert row.family
            assert row.text("source")


def test_the_family_of_a_run_is_the_repository_that_published_it():
    rows = {row.id: row for row in read_rows("runs")}
    assert rows["R001"].family == "RUNTITAN"
    assert "RUNS" not in {row.family for row in rows.values()}, "a repository without a family"
