"""Prompts for a model that is being trained: out of texts, rows and conversations."""

import gzip
import json

import pytest

from shardwise.errors import DataError
from shardwise.train.data.chat import stop_tokens
from shardwise.train.data.prompts import read_prompts
from shardwise.train.data.tokenizer import ByteTokenizer, open_tokenizer
from train.data.chats import CLOSES_ALL, OPENS_THOUGHT, TURNS, UNMARKED, chat_folder, write_rows


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.MD"])
def test_every_line_of_a_text_is_a_prompt_that_is_not_closed(tmp_path, name):
    text = b"one\n\ntwo\n"
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    prompts = read_prompts(tmp_path / name, tokenizer=ByteTokenizer(), seq_len=8)
    assert [prompt.text for prompt in prompts] == ["one", "two"]
    assert prompts[0].tokens == tuple(b"one")


def test_a_conversation_is_continued_where_the_assistant_speaks(tmp_path):
    tokenizer = open_tokenizer(chat_folder(tmp_path / "model", UNMARKED))
    path = write_rows(tmp_path / "a.jsonl", {"messages": TURNS[:3]}, {"prompt": "why?", "completion": "so."})
    chat, text = read_prompts(path, tokenizer=tokenizer, seq_len=64)
    assert chat.text == "<user>why?<end><assistant>so.<end><user>and?<end><assistant>"
    assert tokenizer.decode(chat.tokens) == chat.text
    assert tokenizer.decode(text.tokens) == "why?"


@pytest.mark.parametrize(
    ("row", "says", "code"),
    [
        ({"prompt": "12345678"}, "line 1: the prompt has 8 tokens, and a sequence of the run 8", "data-prompt"),
        ({"prompt": ""}, "line 1: the prompt has 0 tokens", "data-prompt"),
        ({"body": "a"}, "line 1: there is no text under 'prompt', and no messages", "data-field"),
        ({"messages": TURNS}, "bytes have no chat template", "data-template"),
    ],
)
def test_a_prompt_that_cannot_be_continued_is_refused(tmp_path, row, says, code):
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=says) as refused:
        read_prompts(tmp_path / "a.jsonl", tokenizer=ByteTokenizer(), seq_len=8)
    assert refused.value.code == code


def test_a_file_without_prompts_and_none_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("\n", encoding="utf-8")
    for name, says in (("a.txt", "holds no prompt"), ("b.txt", "there is no file")):
        with pytest.raises(DataError, match=says):
            read_prompts(tmp_path / name, tokenizer=ByteTokenizer(), seq_len=8)


def test_prompts_that_are_not_utf8_are_refused_by_the_name_of_the_file(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(DataError, match="is not UTF-8 text") as refused:
        read_prompts(tmp_path / "a.txt", tokenizer=ByteTokenizer(), seq_len=8)
    assert refused.value.code == "data-text"


@pytest.mark.parametrize("template", [UNMARKED, CLOSES_ALL, OPENS_THOUGHT], ids=["plain", "closes all", "thought"])
def test_a_model_stops_where_a_text_ends_and_where_the_template_closes_an_answer(tmp_path, template):
    folder = chat_folder(tmp_path / "chat", template)
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<user>"}', encoding="utf-8")
    assert stop_tokens(open_tokenizer(folder)) == (257, 256)
    (folder / "chat_template.jinja").unlink()
    assert stop_tokens(open_tokenizer(folder)) == (257,)
    assert stop_tokens(open_tokenizer(None)) == (256,)
