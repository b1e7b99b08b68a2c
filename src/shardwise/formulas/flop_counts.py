"""FLOP of training, as the price of a run counts them; other conventions are in the course."""

from shardwise.units import Flop


def six_n_flop_per_token(*, num_params: float) -> Flop:
    """Training FLOP per token without attention: ``6 N``.

    Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1; MosaicML llm-foundry without its attention term.
    Assumes: backward costs two forwards; N counts every parameter a token passes through.

    >>> round(six_n_flop_per_token(num_params=8_030_261_248) / 1e9, 1)
    48.2
    """
    return 6 * num_params
