"""Numbers as 16- and 8-bit formats keep them, bit by bit: every cast rounds as the hardware does.

Only the lesson on precision imports this file, because nothing else needs ``ml_dtypes``.
"""

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

FormatName = Literal["fp32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2"]
FORMAT_NAMES: tuple[FormatName, ...] = ("fp32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2")
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """The range and precision of a number format."""

    name: FormatName
    num_exponent_bits: int
    num_mantissa_bits: int
    """Stored mantissa bits; the hidden one is not counted."""
    max_value: float
    smallest_normal_ratio: float
    """Smallest number above 0 with all its digits."""
    smallest_ratio: float
    """Smallest number above 0."""
    step_at_one_ratio: float
    """Distance from 1 to the next larger number."""


_DTYPE_OF: dict[FormatName, Any] = {
    "fp32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp8-e4m3": ml_dtypes.float8_e4m3fn,
    "fp8-e5m2": ml_dtypes.float8_e5m2,
}


def number_format(name: FormatName) -> NumberFormat:
    """The limits of a format.

    >>> number_format("bf16").num_exponent_bits, number_format("fp16").max_value
    (8, 65504.0)
    """
    info = ml_dtypes.finfo(_DTYPE_OF[name])  # type: ignore[no-untyped-call]
    return NumberFormat(
        name=name,
        num_exponent_bits=int(info.nexp),
        num_mantissa_bits=int(info.nmant),
        max_value=float(info.max),
        smallest_normal_ratio=float(info.smallest_normal),
        smallest_ratio=float(info.smallest_subnormal),
        step_at_one_ratio=float(info.eps),
    )


def rounded(values: NDArray[np.floating], name: FormatName) -> Floats:
    """Values after a cast to the format and back; what is too large becomes infinite, or NaN in e4m3.

    >>> rounded(np.array([1.001, 1e-9, 1e5]), "fp16").tolist()
    [1.0009765625, 0.0, inf]
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrow: Floats = np.asarray(values, dtype=np.float32).astype(_DTYPE_OF[name]).astype(np.float32)
    return narrow


def vanished_fraction(values: Floats, name: FormatName, *, scale: float = 1.0) -> float:
    """Share of the non-zero values that the format keeps as 0 after multiplying by ``scale``."""
    return float(np.mean(rounded(values * np.float32(scale), name)[values != 0] == 0))


def overflow_fraction(values: Floats, name: FormatName, *, scale: float = 1.0) -> float:
    """Share of the values that the format cannot hold after multiplying by ``scale``."""
    return float(np.mean(~np.isfinite(rounded(values * np.float32(scale), name))))


def accumulated(terms: Floats, name: FormatName) -> Floats:
    """The running sum over the first dim of ``terms``, rounded to the format after every addition."""
    total = np.zeros(terms.shape[1:], dtype=np.float32)
    for term in terms:
        total = rounded(total + rounded(term, name), name)
    return total


def relative_error(values: NDArray[np.floating], exact: NDArray[np.floating]) -> float:
    """Length of the error over the length of the exact vector."""
    return float(np.linalg.norm(values.astype(np.float64) - exact) / np.linalg.norm(exact))


def updated(weight: float, *, update: float, num_steps: int, name: FormatName) -> float:
    """A weight kept in the format after ``num_steps`` equal subtractions of ``update``.

    >>> updated(1.0, update=1e-3, num_steps=100, name="bf16")
    1.0
    """
    kept = rounded(np.array([weight]), name)
    for _ in range(num_steps):
        kept = rounded(kept - np.float32(update), name)
    return float(kept[0])
