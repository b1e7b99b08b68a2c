"""A global batch that is given in tokens, as whole sequences that the ranks of a cluster can share."""

from dataclasses import dataclass

from shardwise.errors import RecipeError
from shardwise.units import format_percent

__all__ = ["MAX_ROUNDING_FRACTION", "TokenBatch", "rounded_batch"]

MAX_ROUNDING_FRACTION = 0.05
"""A batch of tokens is moved at most this far to be shared evenly; half a sequence where there are only a few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """What became of a batch given in tokens."""

    num_sequences: int
    num_sharing_gpus: int
    """The largest divisor of the GPUs that divides them."""
    sentence: str
    """What was asked, what is used instead and how far it lies from it."""


def rounded_batch(*, tokens: float, seq_len: int, num_gpus: int) -> TokenBatch:
    """The sequences nearest to a number of tokens that the largest possible share of the GPUs divides.

    The largest divisor of the number of GPUs is taken whose nearest multiple lies within 5 % of what was asked; a batch
    that no such divisor comes close to is rounded to whole sequences.

    >>> rounded_batch(tokens=4e6, seq_len=8192, num_gpus=64).num_sequences
    512
    >>> rounded_batch(tokens=16 * 2**20, seq_len=8192, num_gpus=16384).num_sequences
    2048

    Raises:
        RecipeError: fewer tokens than one sequence has.
    """
    if tokens < seq_len:
        raise RecipeError(
            f"{tokens:,.0f} tokens are less than one sequence of {seq_len:,}",
            code="recipe-range",
            fix=f"give at least --global-batch-tokens {seq_len}, or a smaller --seq-len",
        )
    exact = tokens / seq_len
    divisors = [number for number in range(num_gpus, 0, -1) if num_gpus % number == 0]
    divisor = next((number for number in divisors if _moved_fraction(exact, number) <= MAX_ROUNDING_FRACTION), 1)
    size = _nearest(exact, divisor)
    return TokenBatch(num_sequences=size, num_sharing_gpus=divisor, sentence=_sentence(tokens, seq_len, size, divisor))


def _nearest(exact: float, divisor: int) -> int:
    return max(1, round(exact / divisor)) * divisor


def _moved_fraction(exact: float, divisor: int) -> float:
    return abs(_nearest(exact, divisor) / exact - 1)


def _sentence(tokens: float, seq_len: int, size: int, divisor: int) -> str:
    used = size * seq_len
    asked = f"global_batch_size={size}: {tokens:,.0f} tokens of sequences of {seq_len:,}"
    if used == tokens:
        return f"{asked}, exactly"
    share = used / tokens - 1
    more = f"{format_percent(abs(share))} {'more' if share > 0 else 'fewer'}"
    multiple = f", a multiple of {divisor:,} for the ranks to share" if divisor > 1 else ""
    return f"{asked}, rounded to {used:,} tokens ({more}){multiple}"
