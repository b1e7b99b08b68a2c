"""Two runs that shall be one: their losses and gradient norms, step by step."""

import pytest

RELATIVE = 1e-6
"""fp32: sums in another order differ by less over ten steps; beta2 of 0.951 instead of 0.95 makes 2e-6 over four."""


def assert_same(results, expected, *, relative=RELATIVE):
    for result in results:
        assert result.losses == pytest.approx(expected.losses, rel=relative)
        assert result.norms == pytest.approx(expected.norms, rel=10 * relative)
