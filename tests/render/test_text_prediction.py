"""The text of a prediction: approved output, the same in every pipe, and never wider than asked."""

from dataclasses import replace
from pathlib import Path

import pytest

from golden_files import assert_golden
from render.sample_records import PLAN, PREDICTION, too_big
from shardwise.render.terminal import TextStyle
from shardwise.render.text_prediction import prediction_text, throughput_text

GOLDEN = Path(__file__).parent / "golden"
ESCAPE = "\x1b"


def test_a_plan_that_fits_prints_as_approved():
    assert_golden(GOLDEN / "prediction_fits.txt", prediction_text(plan=PLAN, prediction=PREDICTION))


def test_a_peak_that_no_source_states_leaves_utilisation_unknown():
    throughput = replace(PREDICTION.throughput, mfu_fraction=None, hfu_fraction=None)
    assert "MFU unknown, HFU unknown (" in throughput_text(throughput).plain


def test_a_plan_that_does_not_fit_prints_as_approved():
    assert_golden(GOLDEN / "prediction_too_big.txt", prediction_text(plan=PLAN, prediction=too_big()))


def test_text_for_a_pipe_has_no_colour_and_no_trailing_blanks():
    text = prediction_text(plan=PLAN, prediction=PREDICTION)
    assert ESCAPE not in text
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_text_for_a_terminal_has_colour():
    style = TextStyle(width=100, has_colour=True)
    assert ESCAPE in prediction_text(plan=PLAN, prediction=PREDICTION, style=style)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_is_wider_than_the_medium(width):
    text = prediction_text(plan=PLAN, prediction=PREDICTION, style=TextStyle(width=width))
    assert max(len(line) for line in text.splitlines()) <= width


def test_the_surroundings_do_not_change_the_text(monkeypatch):
    before = prediction_text(plan=PLAN, prediction=PREDICTION)
    for name, value in (("COLUMNS", "40"), ("FORCE_COLOR", "1"), ("TERM", "dumb"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    assert prediction_text(plan=PLAN, prediction=PREDICTION) == before
