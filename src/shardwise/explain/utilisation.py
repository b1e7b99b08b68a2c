"""Checks a reported utilisation: which peak it was divided by, and what it is by the dense peak."""

from dataclasses import dataclass

from shardwise.catalog import load_gpus
from shardwise.cluster import Dtype, Gpu
from shardwise.explain.records import Finding, Quantity
from shardwise.units import FlopPerSecond, format_percent

__all__ = ["explain_utilisation"]

SPARSITY_RATIO = 2.0
"""NVIDIA's headline figures count 2:4 structured sparsity, which training does not use."""
SAME_PEAK_FRACTION = 0.02
IMPLAUSIBLE_FRACTION = 0.80
"""More than dense training has ever reached (best large matrix products reach 87 % on A100 and 80 % on H100)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakGuess:
    """A peak that a reported utilisation was probably divided by, in words, with advice."""

    words: str
    advice: str


def explain_utilisation(
    *, gpu: Gpu, dtype: Dtype, achieved_flop_per_s: FlopPerSecond, peak_used_flop_per_s: FlopPerSecond | None = None
) -> tuple[Finding, ...]:
    """Compares a rate per GPU with the dense peak of ``gpu``, and finds what another divisor got wrong.

    Args:
        gpu: the part it ran on.
        dtype: of the matrix products.
        achieved_flop_per_s: model FLOP per second and GPU, or reported utilisation times the peak it was divided by.
        peak_used_flop_per_s: the divisor of the report, when known.
    """
    dense = gpu.peak_flop_per_s(dtype)
    correct = achieved_flop_per_s / dense
    numbers = [
        Quantity(name="achieved", value=achieved_flop_per_s, unit="flop_per_s"),
        Quantity(name="dense peak", value=dense, unit="flop_per_s"),
        Quantity(name="utilisation", value=correct, unit="fraction"),
    ]
    if peak_used_flop_per_s is None:
        return (_plain(gpu, dtype, correct, tuple(numbers)),)
    reported = achieved_flop_per_s / peak_used_flop_per_s
    numbers.append(Quantity(name="divisor of the report", value=peak_used_flop_per_s, unit="flop_per_s"))
    guess = _guess_peak(gpu, dtype, peak_used_flop_per_s)
    if guess is None:
        return (_plain(gpu, dtype, correct, tuple(numbers)),)
    return (
        Finding(
            topic="time",
            claim=f"The reported {format_percent(reported)} is {format_percent(correct)} of the dense {dtype} peak of "
            f"{gpu.name}.",
            numbers=tuple(numbers),
            because=f"the divisor was {guess.words}",
            suggestion=guess.advice,
        ),
    )


def _plain(gpu: Gpu, dtype: Dtype, correct: float, numbers: tuple[Quantity, ...]) -> Finding:
    doubt = (
        "more than any training run has reached: check the tokens, the time and the FLOP convention"
        if correct > IMPLAUSIBLE_FRACTION
        else ""
    )
    return Finding(
        topic="time",
        claim=f"{format_percent(correct)} of the dense {dtype} peak of {gpu.name}.",
        numbers=numbers,
        because="utilisation divides model FLOP per second by the dense peak of the part it ran on",
        suggestion=doubt,
    )


def _guess_peak(gpu: Gpu, dtype: Dtype, peak_used: FlopPerSecond) -> PeakGuess | None:
    """The source of a wrong divisor: sparsity, another dtype, or another part; ``None`` when the divisor is right."""
    dense = gpu.peak_flop_per_s(dtype)
    if _same(peak_used, dense):
        return None
    if _same(peak_used, SPARSITY_RATIO * dense):
        return PeakGuess(
            words="the figure with 2:4 sparsity, twice the dense peak", advice="divide by the dense peak instead"
        )
    for peak in gpu.peaks:
        if _same(peak_used, peak.flop_per_s):
            return PeakGuess(
                words=f"this part's {peak.dtype} peak", advice=f"divide by the {dtype} peak, or say which one is meant"
            )
    others = sorted(other.name for other in load_gpus() if _same(peak_used, other.peak_flop_per_s(dtype)))
    if others:
        return PeakGuess(
            words=f"the {dtype} peak of another part ({others[0]})", advice=f"divide by that of {gpu.name}"
        )
    return PeakGuess(words="not a dense peak of any part in the catalogue", advice=f"divide by that of {gpu.name}")


def _same(first: FlopPerSecond, second: FlopPerSecond) -> bool:
    return second > 0 and abs(first / second - 1) < SAME_PEAK_FRACTION
