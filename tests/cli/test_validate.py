"""``shardwise validate``: the accuracy table, its rows, and what is left out."""

import json

from shardwise.cli.main import main


def test_one_family_is_answered_with_every_row(capsys):
    assert main(["validate", "--family", "TTITAN", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["schema"] == "shardwise.validation/1"
    assert {"families", "reported", "fitted", "fits", "fits_by_family", "rows", "unused"} <= set(written)
    assert {row["family"] for row in written["rows"]} == {"TTITAN"}
    assert all(row["source"] for row in written["rows"])


def test_the_text_has_signed_errors_and_fits(capsys):
    assert main(["validate", "--family", "TTITAN", "--rows", "--unused"]) == 0
    printed = capsys.readouterr().out
    assert "Peak memory, predicted against measured" in printed
    assert "Does it fit?" in printed
    assert "TTITAN-001" in printed
    assert "Readings that no plan repeats" in printed
    assert max(len(line) for line in printed.splitlines()) <= 80
