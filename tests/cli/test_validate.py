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


def test_step_time_is_another_quantity(capsys):
    assert main(["validate", "--quantity", "time", "--family", "KORTH", "--json"]) == 0
    written = json.loads(capsys.readouterr().out)
    assert written["schema"] == "shardwise.time_validation/1"
    assert {row["family"] for row in written["rows"]} == {"KORTH"}
    assert main(["validate", "--time", "--family", "KORTH", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == written


def test_a_page_is_written_once_unless_forced(tmp_path, capsys):
    page = tmp_path / "accuracy.html"
    assert main(["validate", "--time", "--family", "KORTH", "--html", str(page)]) == 0
    assert "<svg" in page.read_text(encoding="utf-8")
    assert main(["validate", "--time", "--family", "KORTH", "--html", str(page)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["validate", "--family", "ZBPP", "--html", str(page), "--force"]) == 0
    assert "Peak memory" in page.read_text(encoding="utf-8")


def test_a_family_without_rates_names_those_with(capsys):
    assert main(["validate", "--time", "--family", "RUNFMS"]) == 2
    assert "KORTH" in capsys.readouterr().err
