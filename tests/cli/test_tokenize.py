import json

import pytest

from shardwise.cli.main import main


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "a.txt").write_text("abc", encoding="utf-8")
    (tmp_path / "b.jsonl").write_text('{"body": "de"}\n', encoding="utf-8")
    return tmp_path


def test_files_become_tokens_and_a_sentence(corpus, capsys):
    out = corpus / "tokens"
    assert (
        main(["tokenize", str(corpus / "a.txt"), str(corpus / "b.jsonl"), "--data-field", "body", "--out", str(out)])
        == 0
    )
    printed = capsys.readouterr()
    assert printed.out == "7 tokens of 2 documents\n"
    assert printed.err == f"wrote {out}\n"
    assert sorted(path.name for path in out.iterdir()) == ["tokens.bin", "tokens.idx", "tokens.json"]


def test_json_says_what_was_written(corpus, capsys):
    assert main(["tokenize", str(corpus / "a.txt"), "--out", str(corpus / "tokens"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["schema"], answer["num_tokens"], answer["vocab_size"]) == ("shardwise.tokens/1", 4, 257)


@pytest.mark.parametrize(
    ("out", "code"), [("a.txt", "output-exists"), ("nowhere/tokens", "output-path"), ("tokens", "data-field")]
)
def test_what_cannot_be_done_is_refused(corpus, capsys, out, code):
    assert main(["tokenize", str(corpus / "b.jsonl"), "--out", str(corpus / out), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["code"] == code
    assert not (corpus / "tokens").exists()
