"""``docs/families-that-train.md`` says of every family what the program says of it.

After a wanted change: ``UPDATE_GOLDEN=1 .venv/bin/pytest tests/launch/test_families_page.py``, then read the diff.
"""

from pathlib import Path

import pytest
import transformers

from golden_files import assert_golden
from launch.family_table import page, refusal

PAGE = Path(__file__).parents[2] / "docs" / "families-that-train.md"
needs_the_release_that_was_read = pytest.mark.skipif(
    not transformers.__version__.startswith("5.24."), reason="the page is that of transformers 5.24"
)


@pytest.mark.families
@needs_the_release_that_was_read
def test_the_page_lists_what_trains_and_what_is_refused():
    assert_golden(PAGE, page())


BY_THEIR_CLASS = [pytest.param(name, marks=pytest.mark.families) for name in ("fuyu", "got_ocr2")]
"""As moss_transcribe_diarize: a process that imports transformers is asked, which takes four seconds."""


@pytest.mark.parametrize("model_type", [*BY_THEIR_CLASS, "moss_transcribe_diarize", "gemma3"])
def test_a_wrapper_is_refused_whether_or_not_it_is_known(model_type):
    assert refusal(model_type) == "a language model with parts for images or sound around it"
