"""A global batch that is given in tokens, or not at all, as whole sequences that the ranks of a cluster can share."""

from dataclasses import dataclass, replace
from itertools import pairwise

from shardwise.cluster import Cluster
from shardwise.errors import RecipeError
from shardwise.model import ModelSpec
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.rules.degrees import divisors
from shardwise.units import format_count, format_percent

__all__ = [
    "MAX_MICRO_BATCH_SIZE",
    "MAX_ROUNDING_FRACTION",
    "NEAR_BATCH_FRACTION",
    "TokenBatch",
    "assumed_batch",
    "assumed_tokens",
    "fine_tunes",
    "leaves_gaps",
    "near_batch",
    "nearest_sequences",
    "on_cluster",
    "rounded_batch",
    "suiting_tokens",
]

MAX_ROUNDING_FRACTION = 0.05
"""A batch of tokens is moved at most this far to divide well; half a sequence where there are only a few."""
NEAR_BATCH_FRACTION = 0.10
"""A batch this close to the one that was asked for is offered instead of it: it changes little of what is trained."""
MAX_MICRO_BATCH_SIZE = 64
"""The largest micro-batch that is searched."""
MOST_JUMP = 4
"""A micro-batch more than so many times as large mostly has to recompute what the smaller one keeps."""

ADAPTER_SEQUENCES = 16
"""Sequences of a step in which adapters are trained (Dettmers et al. 2023, arXiv:2305.14314, appendix B)."""
TUNING_SEQUENCES = 64
"""Sequences of a step of full fine-tuning: Llama 2-Chat's (arXiv:2307.09288, section 3.1)."""
TOKENS_PER_GPU = 32_768
"""Tokens per GPU of a pre-training step where no batch is given: 8B then takes some seconds a step on A100 and 70B half
a minute, and every GPU has a few sequences."""
MOST_TOKENS = 16 * 2**20
"""The largest batch of Llama 3 405B (arXiv:2407.21783, section 3.4.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """A batch given in tokens, as a number of sequences that the GPUs share."""

    num_sequences: int
    num_sharing_gpus: int
    """The largest divisor of the GPUs that divides them."""
    sentence: str
    """One sentence: the batch that was asked for, the one used instead and the difference."""


def assumed_batch(*, model: ModelSpec, recipe: Recipe, num_gpus: int) -> TokenBatch:
    """The batch of a question that gives none, which suits what is trained and the cluster it is trained on.

    A run over fewer tokens than the model has parameters is fine-tuning; one over more, or over nobody says how many,
    is pre-training.
    """
    if recipe.adapter != "none":
        sequences, rule = ADAPTER_SEQUENCES, f"adapters learn from some {ADAPTER_SEQUENCES} sequences a step"
    elif fine_tunes(model, recipe):
        sequences = TUNING_SEQUENCES
        rule = f"fewer tokens than parameters are fine-tuning, with some {TUNING_SEQUENCES} sequences a step"
    else:
        return _pre_training_batch(model, recipe, num_gpus)
    size = -(-sequences // num_gpus) * num_gpus
    return TokenBatch(
        num_sequences=size,
        num_sharing_gpus=num_gpus,
        sentence=f"{_none_given(size, recipe.seq_len)}: {rule}, at least one for each GPU",
    )


def on_cluster(question: Plan, cluster: Cluster) -> Plan:
    """The question about another cluster, which has the batch that is assumed for it where nobody gave one."""
    recipe = question.recipe
    if "global_batch_size" in question.open_fields:
        batch = assumed_batch(model=question.model, recipe=recipe, num_gpus=cluster.num_gpus)
        recipe = replace(recipe, global_batch_size=batch.num_sequences)
    return replace(question, cluster=cluster, recipe=recipe)


def fine_tunes(model: ModelSpec, recipe: Recipe) -> bool:
    """Whether a run begins with trained weights: adapters do, and so do fewer tokens than the model has parameters."""
    return recipe.adapter != "none" or (recipe.tokens is not None and recipe.tokens < model.num_params)


def suiting_tokens(*, model: ModelSpec, recipe: Recipe, num_gpus: int) -> int:
    """Tokens of the batch that is assumed where none is given."""
    return assumed_batch(model=model, recipe=recipe, num_gpus=num_gpus).num_sequences * recipe.seq_len


def assumed_tokens(model: ModelSpec, *, seq_len: int, num_gpus: int) -> float:
    """Tokens of a pre-training step when none are given: a few sequences for each GPU, at most what suits the model.

    >>> from shardwise.families import read_model
    >>> assumed_tokens(read_model("llama-3.1-8b"), seq_len=8192, num_gpus=8)
    262144
    """
    wanted = min(TOKENS_PER_GPU * num_gpus, optimal_tokens(model.num_active_params))
    return max(seq_len, min(MOST_TOKENS, max(wanted, seq_len * num_gpus)))


def optimal_tokens(num_params: float) -> float:
    """Tokens of the step with the lowest loss when a model is trained on 20 tokens a parameter.

    ``0.2920 * C ** 0.3271`` with ``C = 6 * N * 20 * N`` FLOP.

    Source: Bi et al. 2024 (DeepSeek LLM), arXiv:2401.02954, equation 1; 20 tokens a parameter: Hoffmann et al. 2022.

    >>> round(optimal_tokens(8e9) / 2**20, 1)
    4.0
    """
    tokens: float = 0.2920 * (120 * num_params**2) ** 0.3271
    return tokens


def _pre_training_batch(model: ModelSpec, recipe: Recipe, num_gpus: int) -> TokenBatch:
    seq_len = recipe.seq_len
    tokens = assumed_tokens(model, seq_len=seq_len, num_gpus=num_gpus)
    found = rounded_batch(tokens=tokens, seq_len=seq_len, num_gpus=num_gpus, most_moved=NEAR_BATCH_FRACTION)
    of_all = seq_len * num_gpus
    if found.num_sharing_gpus < num_gpus and tokens >= of_all:  # rather fewer sequences than ranks without any
        found = rounded_batch(tokens=tokens // of_all * of_all, seq_len=seq_len, num_gpus=num_gpus)
    optimal = optimal_tokens(model.num_active_params)
    if tokens >= MOST_TOKENS:
        rule = f"at most the {MOST_TOKENS:,} tokens of Llama 3 405B"
    elif tokens == optimal:
        rule = f"{optimal:,.0f} tokens suit {format_count(model.num_active_params)} active parameters"
    elif tokens == seq_len * num_gpus:
        rule = "one for each GPU"
    else:
        rule = f"{TOKENS_PER_GPU:,} tokens for each GPU"
    sentence = f"{_none_given(found.num_sequences, seq_len)}: for pre-training, {rule}"
    return TokenBatch(num_sequences=found.num_sequences, num_sharing_gpus=found.num_sharing_gpus, sentence=sentence)


def _none_given(size: int, seq_len: int) -> str:
    return (
        f"no global batch was given: {size:,} sequences of {seq_len:,} tokens ({size * seq_len:,} tokens) per step are "
        "assumed, the same for every layout"
    )


def rounded_batch(
    *, tokens: float, seq_len: int, num_gpus: int, most_moved: float = MAX_ROUNDING_FRACTION
) -> TokenBatch:
    """The sequences near a number of tokens that divide best over the GPUs, and then into micro-batches.

    The largest divisor of the number of GPUs is taken whose nearest multiple lies within 5 % of what was asked
    (``most_moved``; nobody asked for a batch that is assumed), then as many times two as leave it there: 976 sequences
    are 61 for each of 16 GPUs, which no micro-batch but 1 divides, and 1,024 are 64. A batch that no such divisor comes
    close to is rounded to whole sequences.

    >>> rounded_batch(tokens=4e6, seq_len=4096, num_gpus=16).num_sequences
    1024
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
    divisor = step = _sharing_divisor(exact, num_gpus, most_moved)
    while _is_near(exact, 2 * step, most_moved):
        step *= 2
    size = _nearest(exact, step)
    return TokenBatch(num_sequences=size, num_sharing_gpus=divisor, sentence=_sentence(tokens, seq_len, size, divisor))


def nearest_sequences(tokens: float, *, seq_len: int, num_gpus: int) -> int:
    """The sequences that come closest to a number of tokens and are shared by as many GPUs as those of `rounded_batch`.

    >>> nearest_sequences(4e6, seq_len=4096, num_gpus=16)
    976
    """
    exact = tokens / seq_len
    return _nearest(exact, _sharing_divisor(exact, num_gpus, MAX_ROUNDING_FRACTION))


def near_batch(size: int, num_gpus: int) -> int:
    """The nearest batch within 10 % that more of the GPUs share, or more micro-batches divide where few do.

    It is the batch itself where none divides better.

    >>> near_batch(255, 32), near_batch(256, 32), near_batch(100, 16), near_batch(976, 16)
    (256, 256, 96, 960)
    """
    divisor = _sharing_divisor(size, num_gpus, NEAR_BATCH_FRACTION)
    steps = (divisor << doublings for doublings in range(size.bit_length()))
    near = [_nearest(size, step) for step in steps if _is_near(size, step, NEAR_BATCH_FRACTION)]
    return next((found for found in near if not leaves_gaps(found // divisor)), near[0] if near else size)


def leaves_gaps(num_sequences: int) -> bool:
    """Whether the micro-batches that divide the sequences of a rank leave one out that is over four times the last.

    >>> leaves_gaps(61), leaves_gaps(60), leaves_gaps(15)
    (True, False, False)
    """
    sizes = [size for size in divisors(num_sequences) if size < MAX_MICRO_BATCH_SIZE]
    return any(more > MOST_JUMP * size for size, more in pairwise((*sizes, min(num_sequences, MAX_MICRO_BATCH_SIZE))))


def _sharing_divisor(exact: float, num_gpus: int, most_moved: float) -> int:
    """The largest divisor of the GPUs with a multiple near a number of sequences; 1 where there is none."""
    shares = (divisor for divisor in reversed(divisors(num_gpus)) if _is_near(exact, divisor, most_moved))
    return next(shares, 1)


def _nearest(exact: float, divisor: int) -> int:
    return max(1, round(exact / divisor)) * divisor


def _is_near(exact: float, step: int, most_moved: float) -> bool:
    """Whether a multiple of the step is so near, as a share of the exact number."""
    return abs(_nearest(exact, step) - exact) <= most_moved * exact


def _sentence(tokens: float, seq_len: int, size: int, divisor: int) -> str:
    used = size * seq_len
    asked = f"global_batch_size={size}: {tokens:,.0f} tokens of sequences of {seq_len:,}"
    if used == tokens:
        return f"{asked}, exactly"
    share = used / tokens - 1
    more = f"{format_percent(abs(share))} {'more' if share > 0 else 'fewer'}"
    multiple = f", {size // divisor:,} for each of {divisor:,} ranks" if divisor > 1 else ""
    return f"{asked}, rounded to {used:,} tokens ({more}){multiple}"
