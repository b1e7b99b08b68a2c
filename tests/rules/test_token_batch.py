"""A batch given in tokens: shared evenly, hardly moved, and what was done is said."""

from math import gcd

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import RecipeError
from shardwise.families import read_model
from shardwise.recipe import Recipe
from shardwise.rules.token_batch import assumed_batch, near_batch, rounded_batch


@pytest.mark.parametrize(
    ("tokens", "seq_len", "num_gpus", "sequences", "divisor"),
    [
        (4e6, 8192, 64, 512, 64),
        (4e6, 8192, 24, 480, 24),
        (16 * 2**20, 8192, 16384, 2048, 2048),
        (16e6, 8192, 16384, 2048, 2048),
        (7 * 4096, 4096, 8, 7, 1),
        (4e6, 4096, 16, 1024, 16),
        (4e6, 4096, 1, 1024, 1),
        (4e6, 4096, 24, 960, 24),
        (1e6, 4096, 8, 256, 8),
        (96 * 8192, 8192, 8, 96, 8),
    ],
)
def test_sequences_divide_over_gpus_and_into_halves_as_five_per_cent_allow(
    tokens, seq_len, num_gpus, sequences, divisor
):
    batch = rounded_batch(tokens=tokens, seq_len=seq_len, num_gpus=num_gpus)
    assert (batch.num_sequences, batch.num_sharing_gpus) == (sequences, divisor)


def test_the_rounding_is_said():
    """512 x 8192 = 4,194,304 = 1.0486 x 4,000,000."""
    sentence = rounded_batch(tokens=4e6, seq_len=8192, num_gpus=64).sentence
    assert sentence.startswith("global_batch_size=512: 4,000,000 tokens of sequences of 8,192, rounded to 4,194,304")
    assert "(4.9% more), 8 for each of 64 ranks" in sentence
    assert rounded_batch(tokens=4 * 2**20, seq_len=8192, num_gpus=64).sentence.endswith("sequences of 8,192, exactly")


@given(st.floats(1e5, 1e8), st.sampled_from((512, 4096, 8192)), st.integers(1, 4096))
def test_a_batch_is_never_moved_by_more_than_five_per_cent_or_half_a_sequence(tokens, seq_len, num_gpus):
    batch = rounded_batch(tokens=tokens, seq_len=seq_len, num_gpus=num_gpus)
    moved_tokens = abs(batch.num_sequences * seq_len - tokens)
    assert moved_tokens <= max(0.05 * tokens, seq_len / 2) * (1 + 1e-9)
    assert batch.num_sequences % batch.num_sharing_gpus == 0
    assert num_gpus % batch.num_sharing_gpus == 0


@pytest.mark.parametrize(
    ("size", "num_gpus", "near"),
    [
        (976, 16, 960),  # 61 a rank: micro-batches of 1 and 61
        (1040, 8, 1040),  # 130 a rank: 1, 2, 5, 10, 13, 26 and 65
        (104, 8, 96),  # 13 a rank
        (120, 8, 120),  # 15 a rank: 1, 3, 5 and 15
        (64, 7, 63),
        (256, 15, 270),  # 17 a rank are nearer, and 18 are better than they
        (1, 8, 1),
    ],
)
def test_a_near_batch_is_shared_by_more_gpus_or_has_micro_batches_between_one_and_all(size, num_gpus, near):
    assert near_batch(size, num_gpus) == near


@given(st.integers(1, 5000), st.integers(1, 512))
def test_a_near_batch_is_near_and_no_fewer_gpus_share_it(size, num_gpus):
    near = near_batch(size, num_gpus)
    assert abs(near - size) <= 0.10 * size
    assert gcd(near, num_gpus) >= gcd(size, num_gpus)


def test_fewer_tokens_than_a_sequence_are_refused():
    with pytest.raises(RecipeError, match="less than one sequence of 4,096"):
        rounded_batch(tokens=1000, seq_len=4096, num_gpus=8)


@pytest.mark.parametrize(
    ("model", "num_gpus", "seq_len", "asked", "sequences", "rule"),
    [
        ("llama-3.1-8b", 8, 8192, {}, 32, "for pre-training, 32,768 tokens for each GPU"),
        ("llama-3.1-8b", 1, 8192, {}, 4, "for pre-training, 32,768 tokens for each GPU"),
        ("llama-3.1-8b", 1024, 8192, {}, 1024, "for pre-training, one for each GPU"),
        ("mixtral-8x7b", 256, 8192, {}, 768, "tokens suit 12.88B active parameters"),
        ("llama-3.1-8b", 8, 131072, {}, 8, "for pre-training, one for each GPU"),
        ("llama-3.1-405b", 16384, 8192, {}, 2048, "for pre-training, at most the 16,777,216 tokens of Llama 3 405B"),
        ("qwen3-8b", 1, 2048, {"adapter": "qlora"}, 16, "adapters learn from some 16 sequences a step"),
        ("qwen3-8b", 24, 2048, {"adapter": "lora"}, 24, "adapters learn from some 16 sequences a step"),
        ("qwen3-8b", 24, 2048, {"tokens": 1e8}, 72, "fewer tokens than parameters are fine-tuning"),
        ("qwen3-8b", 8, 2048, {"tokens": 1e12}, 128, "for pre-training, 32,768 tokens for each GPU"),
    ],
)
def test_a_batch_that_is_not_given_suits_the_cluster_and_the_purpose(model, num_gpus, seq_len, asked, sequences, rule):
    recipe = Recipe(seq_len=seq_len, **asked)
    batch = assumed_batch(model=read_model(model), recipe=recipe, num_gpus=num_gpus)
    assert batch.num_sequences == sequences
    assert batch.sentence.startswith(f"no global batch was given: {sequences:,} sequences of {seq_len:,} tokens")
    assert rule in batch.sentence


def test_a_small_model_gets_the_batch_that_suits_it():
    """GPT-2 of 124 M: 0.2920 x (120 x 124.4e6 ** 2) ** 0.3271 = 277 thousand tokens, half a million are there."""
    batch = assumed_batch(model=read_model("gpt2"), recipe=Recipe(seq_len=1024), num_gpus=16)
    assert batch.num_sequences == 256  # 272 are 17 for each GPU, which no micro-batch but 1 divides
    assert "suit 124.44M active parameters" in batch.sentence


@pytest.mark.parametrize("num_gpus", [96, 1000, 1024, 1536])
def test_an_assumed_batch_leaves_no_rank_without_a_sequence(num_gpus):
    """10.9 million tokens suit 32B: 1,280 sequences, of which 256 of 1,024 GPUs would have had equal shares."""
    recipe = Recipe(seq_len=8192)
    batch = assumed_batch(model=read_model("olmo-3-32b"), recipe=recipe, num_gpus=num_gpus)
    assert batch.num_sequences % num_gpus == 0
