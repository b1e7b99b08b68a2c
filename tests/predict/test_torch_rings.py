"""torchtitan's runs of 2024-12 with and without context parallelism, on the part's own peak; fitted on none of them."""

import pytest

from shardwise.predict.time import predict_time
from shardwise.validate.shipped_runs import timed_runs


def error_fraction(number):
    (run,) = (run for run in timed_runs().runs if run.id == f"TTITAN-{number}")
    return predict_time(run.plan)[0].step_s / run.measured_s - 1


@pytest.mark.parametrize(("number", "fraction"), [("004", -0.068), ("015", -0.078)])
def test_attention_over_32768_tokens_without_a_ring(number, fraction):
    """Llama 3.1 8B on 8 and 405B on 512 H100 of 500 W, 7 and 8 % too fast; 18 and 13 % at the peak of h100-sxm.

    They were 5 and 4 % too fast while recomputation ran the last product of a block again, which torch does not.
    """
    assert error_fraction(number) == pytest.approx(fraction, abs=0.001)


@pytest.mark.parametrize(("number", "fraction"), [("005", 0.039), ("016", -0.107), ("017", -0.015), ("018", -0.083)])
def test_rings_over_two_gpus_and_over_two_four_and_eight_servers(number, fraction):
    """Compiled, with keys and values repeated to the heads of queries: 15 to 40 % too fast when rings cost nothing.

    They were +5, -9, 0 and -8 % while recomputation ran the last product of a block again.
    """
    assert error_fraction(number) == pytest.approx(fraction, abs=0.001)


@pytest.mark.parametrize("number", ["006", "007"])
def test_rings_over_four_and_eight_gpus_of_a_server_stay_unexplained(number):
    """docs/step_time.md says so; a mend of the cause fails here."""
    assert -0.25 < error_fraction(number) < -0.18
