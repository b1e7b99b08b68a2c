import struct

import numpy as np
import pytest

from shardwise.errors import DataError
from shardwise.train.data.indexed_tokens import TokenWriter, read_indexed_tokens, token_dtype


def write(stem, documents, *, vocab_size=1000):
    writer = TokenWriter(stem, dtype=token_dtype(vocab_size))
    writer.add(documents)
    writer.close()
    return stem


def test_what_is_written_is_read(tmp_path):
    file = read_indexed_tokens(write(tmp_path / "a", [[1, 2, 3], [], [4, 5]]))
    assert file.tokens.tolist() == [1, 2, 3, 4, 5]
    assert file.document_starts.tolist() == [0, 3, 5]
    assert (file.num_tokens, file.num_documents) == (5, 2)


def test_the_bytes_are_those_of_megatron(tmp_path):
    """The layout of Megatron-LM's indexed_dataset.py, written out by hand."""
    stem = write(tmp_path / "a", [[1, 2, 3], [4, 5]])
    expected = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, 2, 3)
    expected += struct.pack("<2i", 3, 2) + struct.pack("<2q", 0, 6) + struct.pack("<3q", 0, 1, 2)
    assert stem.with_suffix(".idx").read_bytes() == expected
    assert stem.with_suffix(".bin").read_bytes() == struct.pack("<5H", 1, 2, 3, 4, 5)


def test_documents_of_several_sequences_are_read_as_one(tmp_path):
    """Megatron can split documents into sentences: three sequences, the first two one document."""
    index = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 3, 3)
    index += struct.pack("<3i", 2, 3, 4) + struct.pack("<3q", 0, 8, 20) + struct.pack("<3q", 0, 2, 3)
    (tmp_path / "m.idx").write_bytes(index)
    np.arange(9, dtype="<i4").tofile(tmp_path / "m.bin")
    assert read_indexed_tokens(tmp_path / "m").document_starts.tolist() == [0, 5, 9]


def test_large_vocabularies_take_four_bytes(tmp_path):
    assert token_dtype(65_536).itemsize == 2
    assert token_dtype(65_537).itemsize == 4
    file = read_indexed_tokens(write(tmp_path / "a", [[128_255]], vocab_size=128_256))
    assert file.tokens.tolist() == [128_255]


def test_tokens_stay_on_disk(tmp_path):
    file = read_indexed_tokens(write(tmp_path / "a", [range(500)]))
    assert isinstance(file.tokens, np.memmap)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda stem: stem.with_suffix(".bin").unlink(), "is not there"),
        (lambda stem: stem.with_suffix(".bin").write_bytes(b"abcd"), "promises 5 tokens of 2 bytes"),
        (lambda stem: stem.with_suffix(".idx").write_bytes(b"not an index of tokens at all, no"), "does not begin"),
        (lambda stem: stem.with_suffix(".idx").write_bytes(stem.with_suffix(".idx").read_bytes()[:50]), "cut short"),
        (
            lambda stem: stem.with_suffix(".idx").write_bytes(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 6, 1, 1)),
            "dtype code 6",
        ),
    ],
)
def test_damaged_files_are_refused(tmp_path, damage, says):
    stem = write(tmp_path / "a", [[1, 2, 3], [4, 5]])
    damage(stem)
    with pytest.raises(DataError, match=says) as refusal:
        read_indexed_tokens(stem)
    assert refusal.value.code == "data-tokens"
