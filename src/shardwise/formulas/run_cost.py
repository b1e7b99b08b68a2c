"""GPU-hours, dollars, days and energy of a whole run."""

from shardwise.units import SECONDS_PER_HOUR, Dollars, Flop, FlopPerSecond

JOULE_PER_MWH = 3.6e9


def gpu_hours(
    *, total_flop: Flop, peak_flop_per_s: FlopPerSecond, mfu_fraction: float, goodput_fraction: float = 1.0
) -> float:
    """GPU-hours of a run: ``FLOP / (MFU * P * 3600 * goodput)``.

    Source: Narayanan et al. 2021, arXiv:2104.04473, equation 4, with a goodput factor.
    Assumes: total_flop and mfu_fraction use the same FLOP convention.

    >>> round(gpu_hours(total_flop=3.80e25, peak_flop_per_s=400e12, mfu_fraction=1.0) / 1e6, 1)
    26.4
    """
    return total_flop / (mfu_fraction * peak_flop_per_s * SECONDS_PER_HOUR * goodput_fraction)


def token_gpu_hours(*, tokens: float, tokens_per_s_per_gpu: float) -> float:
    """GPU-hours of a number of tokens at a rate.

    Source: DeepSeek-AI 2024 (DeepSeek-V3), arXiv:2412.19437, section 1 (2.664M H800 hours for 14.8T tokens, a trillion
    of them in 3.7 days on 2,048 GPUs; the days are rounded).
    Assumes: the rate holds, and nothing fails.

    >>> rate = 1e12 / (3.7 * 86400) / 2048
    >>> round(token_gpu_hours(tokens=14.8e12, tokens_per_s_per_gpu=rate) / 1e6, 2)
    2.69
    """
    return tokens / tokens_per_s_per_gpu / SECONDS_PER_HOUR


def run_usd(*, gpu_hours: float, usd_per_gpu_hour: Dollars) -> Dollars:
    """Price of a run.

    Source: DeepSeek-AI 2024 (DeepSeek-V3), arXiv:2412.19437, table 1 (2.788M H800 hours at $2).
    Assumes: one price for every hour.

    >>> run_usd(gpu_hours=2.788e6, usd_per_gpu_hour=2.0) / 1e6
    5.576
    """
    return gpu_hours * usd_per_gpu_hour


def run_days(*, gpu_hours: float, num_gpus: int) -> float:
    """Wall time of a run in days.

    Source: DeepSeek-AI 2024 (DeepSeek-V3), arXiv:2412.19437, section 1 (180K hours on 2,048 GPUs = 3.7 days).
    Assumes: all GPUs busy all the time.

    >>> round(run_days(gpu_hours=180e3, num_gpus=2048), 1)
    3.7
    """
    return gpu_hours / num_gpus / 24


def energy_mwh(*, gpu_hours: float, gpu_power_w: float, power_usage_effectiveness: float = 1.0) -> float:
    """Electric energy of a run in MWh.

    Source: Touvron et al. 2023 (LLaMA), arXiv:2302.13971, section 6: ``GPU-h * W * PUE``.
    Assumes: every GPU draws its rated power all the time; hosts and network are in the PUE or left out.

    >>> round(energy_mwh(gpu_hours=30.84e6, gpu_power_w=700) / 1e3, 1)
    21.6
    """
    return gpu_hours * gpu_power_w * power_usage_effectiveness * SECONDS_PER_HOUR / JOULE_PER_MWH
