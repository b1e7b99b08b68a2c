"""A version of a library that lacks what training uses of it is refused by name, with one that has it."""

import subprocess
import sys

import pytest

from shardwise.errors import LibraryError
from shardwise.train.library_gate import library_gate

WITHOUT = "import torch; del torch._foreach_norm; import shardwise.train.gradients"


def test_what_is_lacking_is_named_with_versions_that_have_it():
    with (
        pytest.raises(LibraryError, match=r"^transformers 5\.\d+.* lacks .*_anything") as refused,
        library_gate("transformers"),
    ):
        _ = object()._anything  # type: ignore[attr-defined]
    assert refused.value.code == "train-library"
    assert refused.value.fix == "pip install 'transformers>=5,<6'"


def test_a_rank_that_cannot_start_ends_with_the_name_and_the_fix():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert "cannot import name '_foreach_norm'" in done.stderr
    assert done.stderr.splitlines()[-1] == "pip install 'torch>=2.11,<2.14'"
