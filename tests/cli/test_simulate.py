"""``shardwise simulate``: the same lesson as text, JSON, steps, page and picture."""

import json
from dataclasses import replace

import pytest

from shardwise.cli.main import main
from shardwise.course.lesson import Check

WORDS = ["simulate", "ring", "--num-ranks", "3"]


def test_tables_claims_and_checks_are_printed(capsys):
    assert main(WORDS) == 0
    written = capsys.readouterr().out
    assert "Ring all-reduce over 3 ranks" in written
    assert "What is said, and what comes out" in written
    assert "add --step to walk through" in written


def test_json_has_every_number_and_says_that_it_is_simulated(capsys):
    assert main([*WORDS, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "shardwise.lessons/1"
    assert answer["is_simulated"]
    assert answer["holds"]
    assert len(answer["lessons"][0]["steps"]) == 4


def test_steps_are_all_printed_in_a_pipe(capsys):
    assert main([*WORDS, "--step"]) == 0
    written = capsys.readouterr().out
    assert [f"[{number}/4]" in written for number in range(1, 5)] == [True] * 4


def test_a_page_and_a_picture_are_written_without_anything_from_elsewhere(tmp_path, capsys):
    page, picture = tmp_path / "ring.html", tmp_path / "ring.svg"
    assert main([*WORDS, "--html", str(page), "--svg", str(picture)]) == 0
    assert f"wrote {page}" in capsys.readouterr().err
    text = page.read_text(encoding="utf-8")
    assert "<link" not in text
    assert "src=" not in text
    assert text.count("http") == text.count("http://www.w3.org/2000/svg")
    assert picture.read_text(encoding="utf-8").startswith("<svg ")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["simulate", "circle"], "simulate-name"),
        (["simulate", "ring", "--pp", "2"], "simulate-option"),
        (["simulate", "ring", "--num-ranks", "1"], "simulate-size"),
        (["simulate", "ring", "--payload-bytes", "big"], "cli-usage"),
        (["simulate", "all", "--num-ranks", "4"], "simulate-option"),
    ],
)
def test_what_cannot_be_simulated_is_refused_with_a_fix(words, code, capsys):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert f"[{code}]" in error
    assert "fix:" in error


def test_shards_of_uneven_size_move_the_bytes_that_the_inventory_predicts(capsys):
    """Two replicas of three shards: weights are rounded up to equal shards before replicas add them."""
    assert main(["simulate", "fsdp", "--num-ranks", "6"]) == 0
    assert "FAIL" not in capsys.readouterr().out


def test_a_check_that_fails_is_a_failure_for_scripts_too(monkeypatch, capsys):
    from shardwise.course import lessons

    def broken(name, request):
        (lesson,) = make_lessons(name, request)
        return (replace(lesson, checks=(Check(what="bytes", difference=1.0, limit=0.0),)),)

    make_lessons = lessons.make_lessons
    monkeypatch.setattr(lessons, "make_lessons", broken)
    assert main(WORDS) == 1
    assert "FAIL" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["zero", "fsdp", "tensor", "precision", "offload"])
def test_no_word_and_no_number_of_a_table_is_cut(name, capsys):
    """Columns read "paramete rs", "(megatro n)", "reduce_sca tter" and "0.006026…"."""
    main(["simulate", name, "--json"])
    simulated = json.loads(capsys.readouterr().out)
    tables = [table for lesson in simulated["lessons"] for table in lesson["tables"]]
    cells = [cell for table in tables for row in table["rows"] for cell in row if isinstance(cell, str)]
    headings = [column["name"] for table in tables for column in table["columns"]]
    words = {word for text in (*cells, *headings) for word in text.split()}
    main(["simulate", name])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    printed = {word for line in lines for word in line.split()}
    assert words
    assert words <= printed
    assert "…" not in "".join(lines)
