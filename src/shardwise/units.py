"""Base units, the constants that convert into them, and the only functions that print them.

Inside the package every quantity is in bytes, seconds, FLOP or dollars. Device memory is shown in GiB (2**30), traffic
and files in GB (1e9).
"""

from math import inf, isfinite
from typing import TypeAlias

Bytes: TypeAlias = int
Seconds: TypeAlias = float
Flop: TypeAlias = float
FlopPerSecond: TypeAlias = float
BytesPerSecond: TypeAlias = float
Dollars: TypeAlias = float

KIB = 2**10
MIB = 2**20
GIB = 2**30
GB = 10**9
MB = 10**6
GIGA = 1e9
TERA = 1e12
GBIT_PER_S: BytesPerSecond = 1e9 / 8
GB_PER_S: BytesPerSecond = 1e9
MICROSECOND: Seconds = 1e-6
SECONDS_PER_MINUTE = 60.0
SECONDS_PER_HOUR = 3600.0
SECONDS_PER_DAY = 86400.0


def format_gib(num_bytes: float) -> str:
    """Device memory as text in GiB; less than a tenth of one is in the largest unit below it.

    >>> format_gib(85_899_345_920), format_gib(3_355_443), format_gib(2**41)
    ('80.00 GiB', '3.20 MiB', '2,048.00 GiB')
    """
    return f"{num_bytes / GIB:,.2f} GiB" if abs(num_bytes) >= GIB / 10 else format_bytes(num_bytes)


def format_gb(num_bytes: float) -> str:
    """Traffic or file size as text in GB (1e9 bytes).

    >>> format_gb(1_500_000_000)
    '1.50 GB'
    """
    return f"{num_bytes / GB:,.2f} GB"


def format_bytes(num_bytes: float) -> str:
    """An amount of any size in powers of two, with the largest unit below it.

    >>> format_bytes(67_108_864), format_bytes(80)
    ('64.00 MiB', '80 B')
    """
    for limit, suffix in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(num_bytes) >= limit:
            return f"{num_bytes / limit:,.2f} {suffix}"
    return f"{num_bytes:.6g} B"


def format_decimal_bytes(num_bytes: float) -> str:
    """An amount of any size in powers of ten, with the largest unit below it.

    >>> format_decimal_bytes(24.5e9), format_decimal_bytes(80)
    ('24.50 GB', '80 B')
    """
    for limit, suffix in ((GB, "GB"), (MB, "MB"), (1000, "KB")):
        if abs(num_bytes) >= limit:
            return f"{num_bytes / limit:,.2f} {suffix}"
    return f"{num_bytes:.6g} B"


def format_count(count: float) -> str:
    """A large count in the field's short form.

    >>> format_count(8_030_261_248)
    '8.03B'
    """
    for limit, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if abs(count) >= limit:
            return f"{count / limit:.2f}{suffix}"
    return f"{count:g}"


def microseconds(duration_s: Seconds) -> float:
    """Seconds in the unit of trace events, to the nanosecond.

    >>> microseconds(0.0012345678)
    1234.568
    """
    return round(duration_s / MICROSECOND, 3)


DURATIONS = (
    (SECONDS_PER_DAY, SECONDS_PER_DAY, ".1f", "d"),
    (SECONDS_PER_HOUR, SECONDS_PER_HOUR, ".1f", "h"),
    (10 * SECONDS_PER_MINUTE, SECONDS_PER_MINUTE, ".1f", "min"),
    (1.0, 1.0, ".2f", "s"),
    (1e-3, 1e-3, ".1f", "ms"),
    (-inf, MICROSECOND, ".1f", "us"),
)
"""From how many seconds on a unit is used, its seconds, digits and name. Steps are compared in seconds up to ten
minutes."""


def format_seconds(duration_s: float) -> str:
    """A duration with a unit that keeps three significant digits.

    >>> format_seconds(0.01234), format_seconds(2200.89), format_seconds(0)
    ('12.3 ms', '36.7 min', '0 s')
    """
    if duration_s == 0:
        return "0 s"
    _, unit_s, digits, name = next(unit for unit in DURATIONS if duration_s >= unit[0])
    return f"{duration_s / unit_s:{digits}} {name}"


def format_band(low_s: float, high_s: float, *, of_s: float) -> str:
    """The two ends of a band around a duration, in that duration's unit.

    >>> format_band(0.8529, 1.0469, of_s=0.9271), format_band(499.91, 614.03, of_s=543.38)
    ('852.9 to 1,046.9 ms', '499.91 to 614.03 s')
    """
    if of_s == 0:
        return f"{format_seconds(low_s)} to {format_seconds(high_s)}"
    _, unit_s, digits, name = next(unit for unit in DURATIONS if of_s >= unit[0])
    return f"{low_s / unit_s:,{digits}} to {high_s / unit_s:,{digits}} {name}"


def format_days(days: float) -> str:
    """The length of a run in days; of less than one in hours, minutes or a smaller unit.

    >>> format_days(1234.56), format_days(0.2), format_days(0.0028), format_days(0.0005)
    ('1,234.6 days', '4.8 h', '4.0 min', '43.20 s')
    """
    duration_s = days * SECONDS_PER_DAY
    if days >= 1:
        return f"{days:,.1f} days"
    if SECONDS_PER_MINUTE <= duration_s < SECONDS_PER_HOUR:
        return f"{duration_s / SECONDS_PER_MINUTE:.1f} min"
    return format_seconds(duration_s)


def format_whole(amount: float) -> str:
    """A number of GPU-hours or days without a fraction that nobody predicts; a small one with three digits.

    >>> format_whole(523_946.2), format_whole(0.8351), format_whole(750.7)
    ('523,946', '0.835', '751')
    """
    return f"{amount:,.0f}" if amount >= 100 else f"{amount:.3g}"


def format_mwh(energy_mwh: float) -> str:
    """Energy in MWh; less than one in kWh.

    >>> format_mwh(326.49), format_mwh(0.0045)
    ('326.5 MWh', '4.5 kWh')
    """
    return f"{energy_mwh:,.1f} MWh" if energy_mwh >= 1 else f"{1000 * energy_mwh:.3g} kWh"


def format_percent(fraction: float) -> str:
    """A fraction (0 to 1) as a percentage with one decimal.

    >>> format_percent(0.4125)
    '41.2%'
    """
    return f"{fraction:.1%}"


def format_utilisation(fraction: float | None) -> str:
    """MFU or HFU as a percentage, where there is a peak to divide by.

    >>> format_utilisation(0.4125), format_utilisation(None)
    ('41.2%', 'unknown')
    """
    return "unknown" if fraction is None else format_percent(fraction)


def format_usd(amount_usd: Dollars) -> str:
    """Dollars, with cents only below a thousand.

    >>> format_usd(2.5), format_usd(1_234_567.8)
    ('$2.50', '$1,234,568')
    """
    return f"${amount_usd:,.2f}" if abs(amount_usd) < 1000 else f"${amount_usd:,.0f}"


def format_flop_per_s(rate_flop_per_s: FlopPerSecond) -> str:
    """A compute rate in TFLOP/s, that of a CPU in GFLOP/s.

    >>> format_flop_per_s(989.5e12), format_flop_per_s(150e9)
    ('989.5 TFLOP/s', '150.0 GFLOP/s')
    """
    if rate_flop_per_s < TERA:
        return f"{rate_flop_per_s / GIGA:.1f} GFLOP/s"
    return f"{rate_flop_per_s / TERA:.1f} TFLOP/s"


def format_bytes_per_s(rate_bytes_per_s: BytesPerSecond) -> str:
    """A bandwidth in GB/s.

    >>> format_bytes_per_s(50e9)
    '50.0 GB/s'
    """
    return f"{rate_bytes_per_s / GB_PER_S:.1f} GB/s"


COUNT_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


def parse_count(text: str) -> float | None:
    """The number people mean by ``15T``, ``1.5e12`` or ``8_192``; ``None`` when it is not a finite number.

    >>> parse_count("15T"), parse_count("15e12"), parse_count("70b"), parse_count("nan")
    (15000000000000.0, 15000000000000.0, 70000000000.0, None)
    """
    scale = COUNT_SUFFIXES.get(text.strip()[-1:].upper(), 1.0)
    digits = text.strip() if scale == 1.0 else text.strip()[:-1]
    try:
        count = float(digits) * scale
    except ValueError:
        return None
    return count if isfinite(count) else None


LENGTH_SUFFIXES = {"K": 2**10, "M": 2**20}


def parse_length(text: str) -> int | None:
    """The tokens people mean by a sequence of ``128K``, ``1M`` or ``8192``; ``None`` when it is not a whole number.

    >>> parse_length("128K"), parse_length("1m"), parse_length("8192"), parse_length("0.5K"), parse_length("much")
    (131072, 1048576, 8192, 512, None)
    """
    scale = LENGTH_SUFFIXES.get(text.strip()[-1:].upper(), 1)
    count = parse_count(text.strip()[:-1] if scale > 1 else text)
    return int(count * scale) if count is not None and count * scale == int(count * scale) else None


BYTE_SUFFIXES = {
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "b": 1
}  # fmt: skip


def parse_bytes(text: str) -> float | None:
    """The bytes people mean by ``64MiB``, ``1.5 GB`` or ``4096``; ``None`` when it is not a finite amount.

    >>> parse_bytes("64MiB"), parse_bytes("1.5 GB"), parse_bytes("4096"), parse_bytes("much")
    (67108864.0, 1500000000.0, 4096.0, None)
    """
    digits = text.strip().lower()
    scale = 1.0
    for suffix, factor in BYTE_SUFFIXES.items():
        if digits.endswith(suffix):
            digits, scale = digits.removesuffix(suffix).strip(), float(factor)
            break
    try:
        amount = float(digits) * scale
    except ValueError:
        return None
    return amount if isfinite(amount) else None
