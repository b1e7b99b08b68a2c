"""Files that are not what their names say are refused in one sentence, and never as a failure of ours."""

import gzip
import json

import pytest

from shardwise.cli.main import main
from shardwise.errors import DataError
from shardwise.train.data.indexed_tokens import read_indexed_tokens
from shardwise.train.data.tokenizer import open_tokenizer
from train.data.reading import read_documents

WORDS = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}


def refusal(path, **named) -> DataError:
    with pytest.raises(DataError) as refused:
        read_documents(path, **named)
    assert str(path) in refused.value.message
    return refused.value


def test_a_parquet_file_that_is_none_is_refused(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    path.write_bytes(b"not a table" * 20)
    assert refusal(path).code == "data-unreadable"
    assert "\n" not in refusal(path).message


def test_a_parquet_file_cut_short_in_its_pages_is_refused(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"text": [f"document {number}" for number in range(999)]}), path)
    content = bytearray(path.read_bytes())
    content[4:2000] = bytes(1996)
    path.write_bytes(content)
    assert refusal(path).code == "data-unreadable"


@pytest.mark.parametrize(
    ("values", "kind"), [([1, 2], "int"), ([["a"], ["b"]], "list"), ([b"a", b"b"], "bytes"), ([0.5, None], "float")]
)
def test_a_column_that_holds_no_text_is_refused(tmp_path, values, kind):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"text": values}), tmp_path / "a.parquet")
    refused = refusal(tmp_path / "a.parquet")
    assert refused.code == "data-field"
    assert refused.message.endswith(f"column 'text' holds {kind}, not text")


@pytest.mark.parametrize(
    "content",
    [b"plain text", gzip.compress(b"a" * 5000)[:-9], gzip.compress(b"a")[:10] + b"\xff" * 30],
    ids=["never compressed", "cut short", "damaged"],
)
def test_a_compressed_file_that_is_damaged_is_refused(tmp_path, content):
    (tmp_path / "a.txt.gz").write_bytes(content)
    assert refusal(tmp_path / "a.txt.gz").code == "data-unreadable"


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00binary", b"7", b"[1]", b"{", b"{}", b'{"model": 3}', b'{"model": {"type": "unheard of"}}', b""],
)
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path, content):
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match="is not a tokenizer") as refused:
        open_tokenizer(path)
    assert refused.value.code == "data-tokenizer"


def test_a_broken_file_beside_a_tokenizer_is_named(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": WORDS}), encoding="utf-8")
    assert open_tokenizer(tmp_path).vocab_size == 1
    (tmp_path / "tokenizer_config.json").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"tokenizer_config\.json"):
        open_tokenizer(tmp_path)


def test_the_command_says_it_with_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("some text", encoding="utf-8")
    (tmp_path / "b.txt.gz").write_bytes(b"no gzip")
    (tmp_path / "tokenizer.model").write_bytes(b"\xff\x00")
    words = {"data-tokenizer": ["a.txt", "--tokenizer", "tokenizer.model"], "data-unreadable": ["b.txt.gz"]}
    for code, rest in words.items():
        assert main(["tokenize", *rest, "--out", "tokens", "--json"]) == 2
        assert json.loads(capsys.readouterr().out)["code"] == code


def test_tokens_that_may_not_be_read_are_refused(tmp_path, monkeypatch):
    """Whoever runs the tests may be allowed to read everything, so the refusal of the system is made here."""
    (tmp_path / "tokens.bin").write_bytes(b"")
    (tmp_path / "tokens.idx").write_bytes(b"")

    def refuse(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(type(tmp_path), "open", refuse)
    with pytest.raises(DataError, match=r"tokens\.idx cannot be read: Permission denied") as refused:
        read_indexed_tokens(tmp_path / "tokens")
    assert refused.value.code == "data-unreadable"
