"""An exported model comes with the tokenizer and the chat template that it was trained with."""

import json

import pytest
from transformers import AutoTokenizer, GenerationConfig

from shardwise.train.pretrained.companions import Companions
from train.data.chats import MARKED, TURNS, UNMARKED, chat_folder


@pytest.fixture
def folders(tmp_path):
    """A base model's folder, another one with a tokenizer, and one to export to."""
    base, chat, out = chat_folder(tmp_path / "base", UNMARKED), chat_folder(tmp_path / "chat", MARKED), tmp_path / "out"
    (base / "generation_config.json").write_text('{"eos_token_id": 256}', encoding="utf-8")
    out.mkdir()
    return base, chat, out


@pytest.mark.parametrize("is_file", [False, True])
def test_the_tokenizer_that_made_the_tokens_goes_along_and_not_that_of_the_weights(folders, is_file):
    base, chat, out = folders
    if is_file:
        (chat / "tokenizer.json").rename(chat / "mine.json")
    Companions(weights=base, tokenizer=chat / "mine.json" if is_file else chat).copy_to(out)
    rendered = AutoTokenizer.from_pretrained(out).apply_chat_template(TURNS, tokenize=False)
    assert rendered == "<user>why?<end><assistant>so.<end><user>and?<end><assistant>yes<end>"
    assert (out / "chat_template.jinja").read_text(encoding="utf-8") == MARKED
    assert (out / "generation_config.json").is_file()


@pytest.mark.parametrize(("held", "kept"), [(5, [5]), ([5, 256], [5, 256]), (None, [])])
def test_who_generates_with_the_model_stops_where_it_was_taught_to(folders, held, kept):
    """The template closes an answer with a token that neither the base model nor the tokenizer calls an end."""
    base, chat, out = folders
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": held, "top_k": 9}), encoding="utf-8")
    (chat / "tokenizer_config.json").write_text('{"eos_token": "<system>"}', encoding="utf-8")
    Companions(weights=base, tokenizer=chat).copy_to(out)
    end, closing = AutoTokenizer.from_pretrained(out).convert_tokens_to_ids(["<system>", "<end>"])
    config = GenerationConfig.from_pretrained(out)
    assert config.top_k == 9
    assert config.eos_token_id == list(dict.fromkeys([*kept, end, closing]))


def test_without_settings_of_generation_those_of_the_config_are_kept(folders):
    _, chat, out = folders
    (out / "config.json").write_text('{"eos_token_id": 7, "pad_token_id": 3, "hidden_size": 8}', encoding="utf-8")
    Companions(tokenizer=chat).copy_to(out)
    written = json.loads((out / "generation_config.json").read_text(encoding="utf-8"))
    assert written == {"eos_token_id": [7, 256], "pad_token_id": 3}


def test_without_a_tokenizer_that_was_named_it_is_that_of_the_weights(folders):
    base, _, out = folders
    Companions(weights=base).copy_to(out)
    assert (out / "chat_template.jinja").read_text(encoding="utf-8") == UNMARKED
    assert (out / "tokenizer.json").is_file()


def test_bytes_and_random_weights_leave_nothing(folders):
    *_, out = folders
    Companions().copy_to(out)
    assert list(out.iterdir()) == []
