import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import DataError
from shardwise.train.data.indexed_tokens import IndexedTokens
from shardwise.train.data.samples import FittedDocuments, PackedStream, SyntheticTokens
from shardwise.train.data.stream import TokenStream

IGNORED = -100


def file_of(*documents):
    tokens = np.array([token for document in documents for token in document], dtype=np.int64)
    starts = np.cumsum([0, *(len(document) for document in documents)])
    return IndexedTokens(name="memory", tokens=tokens, document_starts=starts)


def stream_of(*documents):
    return TokenStream([file_of(*documents)])


def packed(stream, *, seq_len, crosses_documents=False):
    return PackedStream(stream=stream, seq_len=seq_len, vocab_size=100, crosses_documents=crosses_documents)


def test_a_stream_reads_across_files():
    stream = TokenStream([file_of([1, 2], [3]), file_of(), file_of([4, 5, 6], [7])])
    tokens, documents = stream.read(1, 7)
    assert tokens.tolist() == [2, 3, 4, 5, 6, 7]
    assert documents.tolist() == [0, 1, 2, 2, 2, 3]
    assert stream.document_lengths().tolist() == [2, 1, 3, 1]


def test_labels_are_the_tokens_that_follow_and_stop_at_the_end_of_a_document():
    samples = packed(stream_of([1, 2, 3], [4, 5, 6, 7], [8, 9]), seq_len=4)
    assert samples.num_samples == 2
    first, second = samples.sample(0), samples.sample(1)
    assert first.inputs.tolist() == [1, 2, 3, 4]
    assert first.labels.tolist() == [2, 3, IGNORED, 5]
    assert first.positions.tolist() == [0, 1, 2, 0]
    assert second.inputs.tolist() == [5, 6, 7, 8]
    assert second.labels.tolist() == [6, 7, IGNORED, 9]
    assert second.positions.tolist() == [0, 1, 2, 0]


def test_crossing_documents_predicts_every_token_and_counts_on():
    sample = packed(stream_of([1, 2, 3], [4, 5, 6, 7]), seq_len=4, crosses_documents=True).sample(0)
    assert sample.labels.tolist() == [2, 3, 4, 5]
    assert sample.positions.tolist() == [0, 1, 2, 3]


def test_an_epoch_of_a_stream_predicts_each_token_once():
    documents = [list(range(1, 12)), list(range(20, 33)), list(range(40, 45))]
    samples = packed(stream_of(*documents), seq_len=4, crosses_documents=True)
    labels = [token for number in range(samples.num_samples) for token in samples.sample(number).labels.tolist()]
    assert labels == [token for document in documents for token in document][1:29]


def test_too_little_text_is_refused_with_a_length_that_works():
    with pytest.raises(DataError, match=r"5 tokens, and one sample takes 9") as refusal:
        packed(stream_of([1, 2, 3, 4, 5]), seq_len=8)
    assert refusal.value.fix == "give more text, or set seq_len to at most 4"


def test_a_token_outside_the_vocabulary_is_refused():
    samples = PackedStream(stream=stream_of([1, 2, 300, 4, 5]), seq_len=4, vocab_size=257)
    with pytest.raises(DataError, match="token 300, but the model knows only tokens 0 to 256"):
        samples.sample(0)


def test_fitted_documents_stay_whole_and_are_padded():
    samples = FittedDocuments(stream=stream_of([1, 2, 3], [4, 5, 6, 7, 8], [9]), seq_len=6, vocab_size=10)
    assert samples.num_samples == 1
    sample = samples.sample(0)
    assert sample.inputs.tolist() == [4, 5, 6, 7, 1, 2]
    assert sample.labels.tolist() == [5, 6, 7, 8, 2, 3]
    assert sample.positions.tolist() == [0, 1, 2, 3, 0, 1]


def test_padding_is_ignored_and_apart():
    sample = FittedDocuments(stream=stream_of([1, 2, 3]), seq_len=5, vocab_size=10).sample(0)
    assert sample.inputs.tolist() == [1, 2, 0, 0, 0]
    assert sample.labels.tolist() == [2, 3, IGNORED, IGNORED, IGNORED]
    assert sample.positions.tolist() == [0, 1, 0, 1, 2]


@given(lengths=st.lists(st.integers(min_value=1, max_value=40), min_size=1, max_size=30), seq_len=st.integers(3, 17))
def test_fitting_predicts_every_token_but_the_first_of_each_document_once(lengths, seq_len):
    numbers = iter(range(1, 10_000))
    documents = [[next(numbers) for _ in range(length)] for length in lengths]
    wanted = sorted(token for document in documents for token in document[1:])
    if not wanted:
        return
    samples = FittedDocuments(stream=stream_of(*documents), seq_len=seq_len, vocab_size=10_000)
    made = [samples.sample(number) for number in range(samples.num_samples)]
    assert sorted(int(label) for sample in made for label in sample.labels if label != IGNORED) == wanted
    pairs = [
        (int(a), int(b)) for sample in made for a, b in zip(sample.inputs, sample.labels, strict=True) if b != IGNORED
    ]
    assert all(label == token + 1 for token, label in pairs)


def test_fitting_wastes_little_on_real_lengths():
    """Log-normal document lengths, as web text has; first-fit decreasing leaves under two percent empty."""
    lengths = np.random.default_rng(3).lognormal(5.5, 1.0, size=2000).astype(int) + 2
    stream = stream_of(*(np.ones(length, dtype=np.int64) for length in lengths))
    samples = FittedDocuments(stream=stream, seq_len=2048, vocab_size=10)
    assert 1 - (lengths - 1).sum() / (samples.num_samples * 2048) < 0.02


def test_synthetic_samples_are_reproducible_and_skewed():
    samples = SyntheticTokens(seq_len=4096, vocab_size=50_000, seed=5)
    sample = samples.sample(12)
    assert sample.inputs.tolist() == SyntheticTokens(seq_len=4096, vocab_size=50_000, seed=5).sample(12).inputs.tolist()
    assert sample.inputs[1:].tolist() == sample.labels[:-1].tolist()
    assert sample.inputs.tolist() != samples.sample(13).inputs.tolist()
    assert sample.inputs.min() >= 0
    assert sample.inputs.max() < 50_000
    assert np.mean(sample.inputs == 0) == pytest.approx(math.log(2) / math.log(50_001), abs=0.015)
