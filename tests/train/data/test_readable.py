"""Data are looked at before a run: whether they fill a sample, and whether the model knows their tokens."""

import numpy as np
import pytest

from shardwise.errors import DataError
from shardwise.train.data import prepare_samples, require_readable
from shardwise.train.data import request as looking
from shardwise.train.data.indexed_tokens import TokenWriter, read_indexed_tokens, token_dtype
from shardwise.train.data.stream import PIECE_TOKENS, TokenStream
from shardwise.train.data.tokenizer import ByteTokenizer
from shardwise.train.job import DataSpec


def pair(folder, *documents, name="tokens"):
    writer = TokenWriter(folder / name, dtype=token_dtype(1 << 16))
    writer.add(documents)
    writer.close()
    return str(folder / f"{name}.bin")


def refusal(request, *, seq_len=4, vocab_size=300):
    with pytest.raises(DataError) as refused:
        require_readable(request, seq_len=seq_len, vocab_size=vocab_size)
    return refused.value


def test_tokens_that_fill_one_sample_are_enough_and_one_less_is_not(tmp_path):
    source = DataSpec(source=pair(tmp_path, [1, 2, 3], [4, 5]))
    require_readable(source, seq_len=4, vocab_size=300)
    error = refusal(source, seq_len=5)
    assert (error.code, error.message) == ("data-too-short", "the data have 5 tokens, and one sample takes 6")
    assert "at most 4" in error.fix


def test_a_tokenizer_beside_tokens_is_refused(tmp_path):
    error = refusal(DataSpec(source=pair(tmp_path, [1, 2, 3, 4, 5]), tokenizer="tokenizer.json"))
    assert (error.code, error.message) == (
        "data-tokenizer",
        f"a tokenizer does nothing: {tmp_path / 'tokens.bin'} holds tokens already",
    )


def test_whole_documents_need_one_of_two_tokens(tmp_path):
    assert refusal(DataSpec(source=pair(tmp_path, [1], [2]), packing="documents")).code == "data-too-short"
    require_readable(
        DataSpec(source=pair(tmp_path, [1], [2, 3], name="b"), packing="documents"), seq_len=999, vocab_size=300
    )


def test_a_token_that_the_model_does_not_know_is_found_anywhere(tmp_path):
    tokens = np.zeros(3 * PIECE_TOKENS, dtype=np.int64)
    tokens[2 * PIECE_TOKENS + 17] = 300
    error = refusal(DataSpec(source=pair(tmp_path, tokens)))
    assert (error.code, error.message) == (
        "data-vocabulary",
        "the data hold token 300, but the model knows only tokens 0 to 299",
    )


@pytest.mark.parametrize(("max_tokens", "num_pieces"), [(10 * PIECE_TOKENS, 6), (2 * PIECE_TOKENS, 2), (1, 2)])
def test_of_many_tokens_pieces_spread_over_all_files_are_looked_at(tmp_path, max_tokens, num_pieces):
    files = [pair(tmp_path, np.full(3 * PIECE_TOKENS - 5, number), name=f"{number}") for number in (1, 2)]
    stream = TokenStream([read_indexed_tokens(tmp_path / file.removesuffix(".bin")) for file in files])
    pieces = list(stream.sampled(max_tokens))
    assert len(pieces) == num_pieces
    assert {int(piece[0]) for piece in pieces} == {1, 2}
    if max_tokens > 6 * PIECE_TOKENS:
        assert sum(map(len, pieces)) == stream.num_tokens


def test_text_is_tokenised_no_further_than_it_must(tmp_path, monkeypatch):
    seen = []

    class Counting(ByteTokenizer):
        def encode(self, texts):
            seen.extend(texts)
            return super().encode(texts)

    monkeypatch.setattr(looking, "open_tokenizer", lambda path: Counting())
    (tmp_path / "a.jsonl").write_text('{"text": "abcd"}\n' * 99, encoding="utf-8")
    require_readable(DataSpec(source=str(tmp_path)), seq_len=9, vocab_size=300)
    assert seen == ["abcd", "abcd"]


@pytest.mark.parametrize(
    ("content", "vocab_size", "code", "says"),
    [
        ("abc", 300, "data-too-short", "the data have 4 tokens, and one sample takes 5"),
        ("", 300, "data-too-short", "holds no text"),
        ("abcdefgh", 256, "data-vocabulary", "the data hold token 256, but the model knows only tokens 0 to 255"),
    ],
)
def test_text_is_refused_before_it_is_tokenised_and_nothing_is_written(
    tmp_path, monkeypatch, content, vocab_size, code, says
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text(content, encoding="utf-8")
    error = refusal(DataSpec(source=str(tmp_path / "a.txt")), vocab_size=vocab_size)
    assert error.code == code
    assert says in error.message
    assert not (tmp_path / "cache").exists()


def test_text_whose_later_tokens_are_unknown_is_refused_once_it_is_tokenised(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "a.jsonl").write_text('{"text": "abcd"}\n{"text": "abcdé"}\n', encoding="utf-8")

    class WithoutEnd(ByteTokenizer):
        def encode(self, texts):
            return [tokens[:-1] for tokens in super().encode(texts)]

    monkeypatch.setattr(looking, "open_tokenizer", lambda path: WithoutEnd())
    source = DataSpec(source=str(tmp_path / "a.jsonl"))
    require_readable(source, seq_len=3, vocab_size=128)
    with pytest.raises(DataError, match="the data hold token 195"):
        prepare_samples(source, seq_len=3, vocab_size=128)
