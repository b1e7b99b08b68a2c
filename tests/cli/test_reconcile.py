"""``shardwise reconcile``: what cannot be a run is refused for what it is."""

import gzip
import json

import pytest

from shardwise.cli.main import main

PLAN = {
    "model": "llama-3.1-8b",
    "cluster": "8xh100-sxm",
    "recipe": {"seq_len": 4096, "global_batch_size": 8},
    "layout": {"dp_shard": 8},
}
TRACE = json.dumps({"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "k", "ts": 1, "dur": 1}]}).encode()
FILES = {
    "broken.json": (b'{"a": [1, 2', "log-foreign", "none of the 1 lines"),
    "foreign.json": (b'{"foo": 3}', "log-foreign", "none of the 1 lines"),
    "empty.log": (b"", "log-foreign", "is empty"),
    "binary.bin": (b"\x80\x00\x01" * 100, "log-foreign", "is binary"),
    "trace.json.gz": (gzip.compress(TRACE)[:40], "log-foreign", "is compressed"),
    "trace.json": (TRACE, "log-foreign", "is a profiler's trace"),
    "measurement.json": (b'{"memory":', "reconcile-no-measurement", "cannot be read"),
}
MEASUREMENTS = {
    "broken": (b'{"memory":', "cannot be read"),
    "binary": (b"\xae\xff\x00", "cannot be read"),
    "a list": (b"[]", "no measurement"),
    "foreign": (b'{"foo": 3}', "no measurement"),
}


def refused(words, capsys):
    assert main(["reconcile", *map(str, words)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "  fix: " in printed.err
    return printed.err


@pytest.fixture
def plan(tmp_path):
    path = tmp_path / "the-plan.json"
    path.write_text(json.dumps(PLAN), encoding="utf-8")
    return path


def test_a_missing_path_is_called_missing_whether_a_plan_is_known_or_not(plan, tmp_path, capsys):
    for words in ([tmp_path / "nope"], [tmp_path / "nope", "--plan", plan]):
        said = refused(words, capsys)
        assert "there is no file or folder" in said
        assert "nope" in said


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_log_is_called_what_it_is(name, plan, tmp_path, capsys):
    content, code, words = FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    said = refused([path, "--plan", plan], capsys)
    assert f"[{code}]" in said
    assert words in said


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_a_run_whose_measurement_is_damaged_is_refused(name, tmp_path, capsys):
    content, words = MEASUREMENTS[name]
    (tmp_path / "plan.json").write_text(json.dumps(PLAN), encoding="utf-8")
    (tmp_path / "measurement.json").write_bytes(content)
    said = refused([tmp_path], capsys)
    assert "reconcile-no-measurement" in said
    assert words in said


def test_a_folder_without_a_measurement_is_not_asked_for_its_plan(tmp_path, capsys):
    assert "is empty" in refused([tmp_path], capsys)
    (tmp_path / "notes.txt").write_text("nothing", encoding="utf-8")
    assert "holds no measurement.json" in refused([tmp_path], capsys)


def test_what_must_not_be_read_is_refused_for_that(plan, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("os.access", lambda _path, _mode: False)
    assert "must not be read" in refused([tmp_path, "--plan", plan], capsys)


def test_nothing_that_is_read_is_overwritten_and_no_run_counts_twice(plan, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "plan.json").write_bytes(plan.read_bytes())
    (run / "measurement.json").write_text("{}", encoding="utf-8")
    page = tmp_path / "page"
    for words, says in (
        ([run, "--out", run / "measurement.json"], "--out would overwrite"),
        ([run / "measurement.json", "--out", run / "plan.json"], "--out would overwrite"),
        ([run, "--plan", plan, "--html", plan], "--html would overwrite"),
        ([run, "--out", page, "--html", page], "which --out writes as well"),
        ([run, run / ".." / "run"], "is named twice"),
    ):
        assert says in refused([*words, "--force"], capsys)
    assert (run / "measurement.json").read_text(encoding="utf-8") == "{}"
    assert not page.exists()
