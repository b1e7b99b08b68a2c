"""A batch given in tokens: shared evenly, hardly moved, and what was done is said."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import RecipeError
from shardwise.search import rounded_batch


@pytest.mark.parametrize(
    ("tokens", "seq_len", "num_gpus", "sequences", "divisor"),
    [
        (4e6, 8192, 64, 512, 64),
        (4e6, 8192, 24, 480, 24),
        (16 * 2**20, 8192, 16384, 2048, 2048),
        (16e6, 8192, 16384, 2048, 2048),
        (7 * 4096, 4096, 8, 7, 1),
    ],
)
def test_sequences_are_shared_by_as_many_gpus_as_five_per_cent_allow(tokens, seq_len, num_gpus, sequences, divisor):
    batch = rounded_batch(tokens=tokens, seq_len=seq_len, num_gpus=num_gpus)
    assert (batch.num_sequences, batch.num_sharing_gpus) == (sequences, divisor)


def test_the_rounding_is_said():
    """512 x 8192 = 4,194,304 = 1.0486 x 4,000,000."""
    sentence = rounded_batch(tokens=4e6, seq_len=8192, num_gpus=64).sentence
    assert sentence.startswith("global_batch_size=512: 4,000,000 tokens of sequences of 8,192, rounded to 4,194,304")
    assert "(4.9% more), a multiple of 64" in sentence
    assert rounded_batch(tokens=4 * 2**20, seq_len=8192, num_gpus=64).sentence.endswith("sequences of 8,192, exactly")


@given(st.floats(1e5, 1e8), st.sampled_from((512, 4096, 8192)), st.integers(1, 4096))
def test_a_batch_is_never_moved_by_more_than_five_per_cent_or_half_a_sequence(tokens, seq_len, num_gpus):
    batch = rounded_batch(tokens=tokens, seq_len=seq_len, num_gpus=num_gpus)
    moved_tokens = abs(batch.num_sequences * seq_len - tokens)
    assert moved_tokens <= max(0.05 * tokens, seq_len / 2) * (1 + 1e-9)
    assert batch.num_sequences % batch.num_sharing_gpus == 0
    assert num_gpus % batch.num_sharing_gpus == 0


def test_fewer_tokens_than_a_sequence_are_refused():
    with pytest.raises(RecipeError, match="less than one sequence of 4,096"):
        rounded_batch(tokens=1000, seq_len=4096, num_gpus=8)
