import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from shardwise.errors import DataError
from shardwise.train.data import prepare
from shardwise.train.data.indexed_tokens import read_indexed_tokens
from shardwise.train.data.prepare import tokenise, tokenise_once
from shardwise.train.data.request import open_samples
from shardwise.train.data.sources import Source
from shardwise.train.data.tokenizer import ByteTokenizer, open_tokenizer
from shardwise.train.job import DataSpec


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A real byte-pair tokenizer, trained on the spot, with the files a Hugging Face model has beside it."""
    folder = tmp_path_factory.mktemp("model")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<pad>", "<end>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator(["the cat sat on the mat, the dog did not"] * 20, trainer)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<end>"}}), encoding="utf-8")
    return folder


def corpus(folder, *texts):
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def test_a_tokenizer_file_closes_documents_with_its_end_token(model_folder):
    tokenizer = open_tokenizer(model_folder)
    assert tokenizer.end_token == 1
    assert tokenizer.vocab_size == Tokenizer.from_file(str(model_folder / "tokenizer.json")).get_vocab_size()
    (tokens,) = tokenizer.encode(["the cat"])
    assert tokens[-1] == 1
    backend = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    assert "".join(backend.id_to_token(int(token)) for token in tokens[:-1]) == "theĠcat"


def test_the_end_token_is_found_in_a_model_config_as_well(model_folder, tmp_path):
    text = (model_folder / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    assert open_tokenizer(tmp_path).end_token is None
    (tmp_path / "config.json").write_text('{"eos_token_id": [7, 8]}', encoding="utf-8")
    assert open_tokenizer(tmp_path / "tokenizer.json").end_token == 7


def test_a_folder_without_tokenizer_and_a_file_that_is_none_are_refused(tmp_path):
    with pytest.raises(DataError, match="there is no tokenizer at"):
        open_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="is not a tokenizer"):
        open_tokenizer(tmp_path)


def test_tokenising_writes_documents_and_a_summary(tmp_path):
    summary = tokenise([Source(path=corpus(tmp_path, "ab", "", "c"))], tmp_path / "out", tokenizer=ByteTokenizer())
    file = read_indexed_tokens(tmp_path / "out" / "tokens")
    assert file.tokens.tolist() == [97, 98, 256, 256, 99, 256]
    assert file.document_starts.tolist() == [0, 3, 4, 6]
    assert (summary.num_documents, summary.num_tokens, summary.vocab_size) == (3, 6, 257)
    assert json.loads((tmp_path / "out" / "tokens.json").read_text(encoding="utf-8"))["end_token"] == 256


def test_the_second_run_reads_the_cache_and_a_changed_file_is_tokenised_again(tmp_path, monkeypatch):
    calls = []
    real = prepare.tokenise
    monkeypatch.setattr(prepare, "tokenise", lambda *given, **named: calls.append(1) or real(*given, **named))
    path = corpus(tmp_path, "ab")
    options = {"tokenizer": ByteTokenizer(), "field": "text", "cache": tmp_path / "cache"}
    tokenise_once(Source(path=path), **options)
    tokenise_once(Source(path=path), **options)
    assert len(calls) == 1
    corpus(tmp_path, "longer than before")
    assert tokenise_once(Source(path=path), **options).num_tokens == 19
    assert len(calls) == 2


def test_an_interrupted_run_leaves_nothing_that_looks_done(tmp_path):
    path = corpus(tmp_path, "ab")
    path.write_text(path.read_text(encoding="utf-8") + "not json\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 2"):
        tokenise_once(Source(path=path), tokenizer=ByteTokenizer(), field="text", cache=tmp_path / "cache")
    assert [file.name for file in (tmp_path / "cache").iterdir() if file.is_dir()] == []


def _tokenise_here(path):
    file = tokenise_once(Source(path=path), tokenizer=ByteTokenizer(), field="text", cache=path.parent / "cache")
    return file.num_tokens


def test_processes_that_start_together_tokenise_once(tmp_path):
    path = corpus(tmp_path, *(["some text"] * 3000))
    with ProcessPoolExecutor(2, mp_context=get_context("fork")) as pool:
        assert list(pool.map(_tokenise_here, [path] * 4)) == [30_000] * 4
    assert len([file for file in (tmp_path / "cache").iterdir() if file.is_dir()]) == 1


def test_text_json_lines_and_token_pairs_open_as_the_same_samples(tmp_path, model_folder):
    text = "the cat sat on the mat, the dog did not"
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a.txt").write_text(text, encoding="utf-8")
    lines = corpus(tmp_path, text)
    tokenise([Source(path=lines)], tmp_path / "pairs", tokenizer=open_tokenizer(model_folder))
    sources = [tmp_path / "plain", lines, tmp_path / "pairs", tmp_path / "pairs" / "tokens.bin"]
    opened = [
        open_samples(
            DataSpec(source=str(source), tokenizer=str(model_folder)),
            seq_len=5,
            vocab_size=300,
            cache=tmp_path / "cache",
        )
        for source in sources
    ]
    assert len({samples.fingerprint for samples in opened}) == 1
    assert [samples.sample(0).inputs.tolist() for samples in opened] == [opened[0].sample(0).inputs.tolist()] * 4


def test_tokens_without_their_index_are_refused(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"\0" * 8)
    with pytest.raises(DataError, match=r"a.bin has no .idx beside it"):
        open_samples(DataSpec(source=str(tmp_path)), seq_len=2, vocab_size=10)


def test_a_file_without_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match="holds no text"):
        tokenise_once(
            Source(path=tmp_path / "a.txt"), tokenizer=ByteTokenizer(), field="text", cache=tmp_path / "cache"
        )
