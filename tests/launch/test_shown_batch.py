"""``train --show-batch`` decodes what a run would read first, and marks what of it is learned."""

import json

import pytest

from shardwise.cli.main import main
from shardwise.train.data.indexed_tokens import TokenWriter, token_dtype

PLAN = ["llama-3.2-1b", "1xh100-sxm", "--seq-len", "16", "--micro-batch-size", "2", "--global-batch-size", "2"]


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lines = [{"prompt": "a?\n", "completion": "b"}, {"prompt": "c? ", "completion": "dd"}, {"text": "longer than it"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return tmp_path


def shown(capsys, *words):
    assert main(["train", *PLAN, "--data", "rows.jsonl", "--no-shuffle", "--show-batch", *words]) == 0
    return capsys.readouterr()


def test_the_first_micro_batch_is_decoded_with_its_mask(rows, capsys):
    said = shown(capsys)
    assert said.out == (
        "> is learned, | is only read\n"
        "sequence 1: 15 tokens, 14 learned, 2 places of padding\n"
        "  | l\n"
        "  > onger than it\n"
        "sequence 2: 11 tokens, 5 learned, 7 places of padding\n"
        "  | c? \n"
        "  > dd\n"
        "  | a?\\n\n"
        "  > b\n"
    )
    assert "20 of 26 tokens in 3 rows are learned" in said.err
    assert not (rows / "runs").exists()


def test_one_row_a_sample_as_json(rows, capsys):
    answer = json.loads(shown(capsys, "--packing", "rows", "--json").out)
    parts = [part for sequence in answer["sequences"] for part in sequence["parts"]]
    assert [(part["is_learned"], part["text"], part["num_tokens"]) for part in parts] == [
        (False, "a?\n", 3),
        (True, "b", 2),
        (False, "c? ", 3),
        (True, "dd", 3),
    ]


@pytest.mark.parametrize("name", ["", "corpus", "corpus.bin"])
def test_tokens_without_a_tokenizer_are_shown_as_numbers_however_they_are_named(tmp_path, capsys, name):
    writer = TokenWriter(tmp_path / "corpus", dtype=token_dtype(128_256))
    writer.add([range(1000, 1034)])
    writer.close()
    assert main(["train", *PLAN, "--data", str(tmp_path / name), "--no-shuffle", "--show-batch", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["sequences"][0]["parts"]
    assert [part["text"] for part in first] == ["1000", " ".join(str(number) for number in range(1001, 1017))]


def test_without_data_there_is_nothing_to_show(capsys):
    assert main(["train", *PLAN, "--show-batch", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "--show-batch does nothing without --data"
