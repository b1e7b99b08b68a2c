"""``shardwise timeline``: files that are asked for, nothing overwritten, and a trace on standard output."""

import json

import pytest

from shardwise.cli.main import main

WORDS = ["timeline", "llama-3.1-8b", "8xh100-sxm", "--seq-len", "4096", "--dp-shard", "8", "--global-batch-size", "16"]


def test_the_trace_is_written_where_it_was_asked_for(tmp_path, capsys):
    path = tmp_path / "step.json"
    assert main([*WORDS, "--out", str(path)]) == 0
    trace = json.loads(path.read_text(encoding="utf-8"))
    assert trace["schema"] == "shardwise.timeline/1"
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X"}
    written = capsys.readouterr()
    assert f"wrote {path}" in written.err
    assert "Simulated step of" in written.out
    assert "Next: " not in written.out


def test_without_a_file_the_command_that_draws_is_what_to_type_next(capsys):
    """Lines of shares ran to 190 columns."""
    assert main(WORDS) == 0
    printed = capsys.readouterr().out
    assert "\nNext: shardwise timeline llama-3.1-8b 8xh100-sxm" in printed
    assert printed.endswith("--html step.html\n")
    assert max(map(len, printed.splitlines())) <= 80


def test_a_drawn_step_that_does_not_fit_says_so(capsys):
    assert main([*WORDS, "--micro-batch-size", "2"]) == 0
    assert "does not fit" not in capsys.readouterr().out
    assert main(["timeline", "llama-3.1-8b", "1xrtx-4090"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Simulated step of ")
    assert "; 1 of 1 rank drawn with" in lines[0]
    assert lines[1] == "Its memory: 115.72 of 23.52 GiB on the fullest GPU: does not fit"


def test_json_prints_the_trace(capsys):
    assert main([*WORDS, "--json"]) == 0
    trace = json.loads(capsys.readouterr().out)
    assert trace["otherData"]["is_simulated"] is True


def test_a_page_and_a_picture_are_written(tmp_path):
    page, picture = tmp_path / "step.html", tmp_path / "step.svg"
    assert main([*WORDS, "--html", str(page), "--svg", str(picture)]) == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert picture.read_text(encoding="utf-8").startswith("<svg ")


@pytest.mark.parametrize("option", ["--out", "--html", "--svg"])
def test_an_existing_file_is_kept_unless_forced(option, tmp_path, capsys):
    path = tmp_path / "kept"
    path.write_text("mine", encoding="utf-8")
    assert main([*WORDS, option, str(path)]) == 2
    assert path.read_text(encoding="utf-8") == "mine"
    assert "output-exists" in capsys.readouterr().err
    assert main([*WORDS, option, str(path), "--force"]) == 0
    assert path.read_text(encoding="utf-8") != "mine"


def test_a_plan_that_cannot_run_is_refused(capsys):
    assert main(["timeline", "llama-3.1-8b", "8xh100-sxm", "--seq-len", "4096", "--dp-shard", "16"]) == 2
    assert "fix:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--out", "one", "--svg", "./one"], "--svg would overwrite 'one', which --out writes as well"),
        (["--html", "one", "--svg", "link"], "--svg would overwrite 'link', which --html writes as well"),
        (["--out", "plan.json"], "--out would overwrite 'plan.json', which the command reads"),
    ],
    ids=str,
)
def test_files_that_are_written_and_read_are_different_ones(words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    plan = {"model": "gpt2", "cluster": "1xh100-sxm", "recipe": {"seq_len": 512}}
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    (tmp_path / "link").symlink_to(tmp_path / "one")
    before = (tmp_path / "plan.json").read_bytes()
    assert main(["timeline", "plan.json", *words, "--force"]) == 2
    assert says in capsys.readouterr().err
    assert (tmp_path / "plan.json").read_bytes() == before
    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize("command", ["plan", "predict"])
def test_so_they_are_of_other_commands(command, tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text("{}", encoding="utf-8")
    words = [command, str(config), "1xh100-sxm", "--seq-len", "512", "--html", str(config)]
    assert main([*words, *(["--force"] if command == "plan" else [])]) == 2
    assert "--html would overwrite" in capsys.readouterr().err
    assert config.read_text(encoding="utf-8") == "{}"


@pytest.mark.parametrize("words", [["simulate", "memory"], ["lab", "memory"]], ids=" ".join)
def test_a_model_that_is_read_is_not_written_over_by_pictures_of_it(words, tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text("{}", encoding="utf-8")
    assert main([*words, "--model", str(config), "--html", str(config), "--force"]) == 2
    assert "--html would overwrite" in capsys.readouterr().err
    assert config.read_text(encoding="utf-8") == "{}"
