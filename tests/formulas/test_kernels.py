"""Waves and saturation of matrix products against measured rates."""

import pytest

from shardwise.formulas import kernel_time


def test_wave_efficiency_is_one_for_full_waves_only():
    tile = {"tile_m": 128, "tile_n": 256, "num_sms": 8}
    assert kernel_time.wave_efficiency(m=1024, n=256, **tile) == 1
    assert kernel_time.wave_efficiency(m=1152, n=256, **tile) == pytest.approx(9 / 16)
    assert kernel_time.wave_efficiency(m=1, n=1, **tile) == pytest.approx(1 / (128 * 256 * 8))


@pytest.mark.parametrize(
    ("k", "measured_tflops"),
    [(256, 386), (512, 520), (1024, 628), (2048, 705), (4096, 736), (8192, 758), (16384, 766)],
)
def test_gemm_saturation_fits_the_published_sweep(k, measured_tflops):
    """TileLang on H800, m = n = 8192, fp16: within 1.5 %."""
    assert 782.9 * kernel_time.saturation(x=k, half=258) == pytest.approx(measured_tflops, rel=0.015)
