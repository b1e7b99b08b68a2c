"""How many tokens a model of a size should see."""

from shardwise.units import Flop

TOKENS_PER_PARAM = 20
"""Hoffmann et al. 2022, table 3: 20.0 tokens per parameter at 1B and 21.2 at 67B."""


def chinchilla_tokens(*, num_params: float) -> float:
    """Compute-optimal training tokens, by the rule of twenty per parameter.

    Source: Hoffmann et al. 2022 (Chinchilla), arXiv:2203.15556, table 3; 70B was trained on 1.4T tokens.
    Assumes: compute is spent on training only; a model that will serve many requests is trained far longer.

    >>> chinchilla_tokens(num_params=70e9) / 1e12
    1.4
    """
    return TOKENS_PER_PARAM * num_params


def training_flop(*, num_active_params: float, num_tokens: float) -> Flop:
    """Training FLOP of a whole run: ``6 N D``.

    Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1.
    Assumes: attention is left out; N counts the parameters one token passes through.

    >>> f"{training_flop(num_active_params=70e9, num_tokens=1.4e12):.1e}"
    '5.9e+23'
    """
    return 6 * num_active_params * num_tokens
