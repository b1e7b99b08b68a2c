import builtins
import gzip
import json
import shlex

import pytest

from shardwise.errors import DataError
from shardwise.train.data.documents import PARAGRAPH_CHARS, find_documents
from train.data.reading import read_documents


def test_a_text_file_is_one_document(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo ü", encoding="utf-8")
    assert read_documents(tmp_path / "a.txt") == ["one\n\ntwo ü"]


def test_a_long_text_file_is_cut_at_line_ends_and_nothing_is_lost(tmp_path):
    text = "".join(f"line {number}\n" for number in range(200_000))
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    pieces = read_documents(tmp_path / "a.txt")
    assert len(pieces) == len(text) // PARAGRAPH_CHARS + 1
    assert all(piece.endswith("\n") for piece in pieces)
    assert "".join(pieces) == text


def test_json_lines_are_documents_also_compressed(tmp_path):
    lines = "\n".join(json.dumps({"body": body, "n": 1}) for body in ("a", "b")) + "\n\n"
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert read_documents(tmp_path / "a.jsonl", field="body") == ["a", "b"]
    assert read_documents(tmp_path / "b.jsonl.gz", field="body") == ["a", "b"]


def test_parquet_rows_are_documents(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"text": ["a", "", "b"], "n": [1, 2, 3]}), tmp_path / "a.parquet")
    assert read_documents(tmp_path / "a.parquet") == ["a", "", "b"]
    with pytest.raises(DataError, match="no text under 'body'; the row has n, text"):
        read_documents(tmp_path / "a.parquet", field="body")


@pytest.mark.parametrize(
    ("value", "said"),
    [("null", "null"), ("3", "a number"), ("true", "a boolean"), ('["a"]', "a list"), ('{"en": "a"}', "an object")],
)
def test_a_line_whose_key_holds_no_text_says_what_it_holds(tmp_path, value, said):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "good"}}\n{{"text": {value}, "body": "b"}}\n', encoding="utf-8")
    with pytest.raises(DataError) as refusal:
        read_documents(path)
    assert refusal.value.message == f"{path}, line 2: 'text' is {said}, not text"
    assert refusal.value.fix.startswith("drop the rows without text")


def test_a_parquet_row_without_text_is_named(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    texts = [f"document {number}" for number in range(2000)]
    texts[1500] = None
    parquet.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    with pytest.raises(DataError) as refusal:
        read_documents(tmp_path / "a.parquet")
    assert refusal.value.message == f"{tmp_path / 'a.parquet'}, row 1501: there is no text in column 'text'"
    assert refusal.value.code == "data-field"


def test_an_empty_text_is_a_document_in_every_kind_of_file(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"text": ["a", "", "b"]}), tmp_path / "a.parquet")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in ("a", "", "b"))
    (tmp_path / "a.jsonl").write_text(lines, encoding="utf-8")
    assert read_documents(tmp_path / "a.parquet") == read_documents(tmp_path / "a.jsonl")


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    real_import = builtins.__import__

    def without_pyarrow(name, *rest):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    with pytest.raises(DataError, match="needs pyarrow") as refusal:
        read_documents(tmp_path / "a.parquet")
    assert refusal.value.fix == "pip install 'shardwise[data]'"


@pytest.mark.parametrize(
    ("line", "says", "code"),
    [
        ('{"text": "a"', "a.jsonl, line 2: not JSON", "data-text"),
        ('{"body": "a", "id": 3}', "no text under 'text'; the line has body, id", "data-field"),
        ("[1]", "the line has no keys at all", "data-field"),
        ('{"text": 5}', "'text' is a number, not text", "data-field"),
        (r'{"text": "\ud83d"}', "a text ends or begins within a character", "data-text"),
        ('{"completion": "a"}', "'prompt' is null and 'completion' is a text", "data-field"),
        ('{"messages": []}', "'messages' is empty, not a list of messages", "data-messages"),
        ('{"messages": "a"}', "'messages' is a text, not a list of messages", "data-messages"),
        (
            '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            "message 1 of 'messages' holds a part of type image_url",
            "data-messages",
        ),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, says, code):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "fine"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(DataError, match=says) as refusal:
        read_documents(tmp_path / "a.jsonl")
    assert refusal.value.code == code


def test_a_character_of_two_escapes_is_one(tmp_path):
    (tmp_path / "a.jsonl").write_text(r'{"text": "\ud83d\ude00"}', encoding="utf-8")
    assert read_documents(tmp_path / "a.jsonl") == ["\U0001f600"]


def test_other_encodings_are_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes("für".encode("latin-1"))
    with pytest.raises(DataError, match="is not UTF-8 text"):
        read_documents(tmp_path / "a.txt")


def test_a_folder_is_read_in_the_order_of_names(tmp_path):
    for name in ("b.txt", "a.jsonl", "notes.pdf", "c/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    assert [path.name for path in find_documents(tmp_path)] == ["a.jsonl", "b.txt", "d.txt"]


def test_the_card_of_a_data_set_is_no_part_of_it_and_texts_alone_may_have_any_name(tmp_path):
    (tmp_path / "README.md").write_text("x", encoding="utf-8")
    assert [path.name for path in find_documents(tmp_path)] == ["README.md"]
    (tmp_path / "a.jsonl").write_text("{}", encoding="utf-8")
    assert [path.name for path in find_documents(tmp_path)] == ["a.jsonl"]


@pytest.mark.parametrize("name", ["a.csv", 'it\'s "mine".csv', "$HOME.tsv"])
def test_what_makes_a_file_of_another_kind_readable_is_a_command(tmp_path, name):
    """Its path reaches Python as it is, whatever the shell makes of such letters."""
    path = tmp_path / name
    path.write_text("text", encoding="utf-8")
    with pytest.raises(DataError) as refusal:
        find_documents(path)
    python, option, code, *paths = shlex.split(refusal.value.fix.removeprefix("write it as JSON Lines: "))
    assert (python, option, paths) == ("python", "-c", [str(path), str(path.with_suffix(".jsonl"))])
    assert f"from_csv(sys.argv[1]{', sep=chr(9)' * (path.suffix == '.tsv')}).to_json(sys.argv[2])" in code


def test_paths_that_hold_nothing_are_refused(tmp_path):
    (tmp_path / "a.pdf").write_text("x", encoding="utf-8")
    with pytest.raises(DataError, match="there is no file or folder"):
        find_documents(tmp_path / "nowhere")
    with pytest.raises(DataError, match="holds no file whose name ends in"):
        find_documents(tmp_path)
    with pytest.raises(DataError, match="of no kind that can be read"):
        find_documents(tmp_path / "a.pdf")
