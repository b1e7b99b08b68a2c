"""Processes of tests are forked from one that has imported what they use."""

import sys

from train.ranks import run_ranks


def _has_imports(rank):
    return "train.preloaded" in sys.modules


def test_a_process_finds_its_modules_imported():
    """The server passes over a module that it cannot find, and every process would then import torch again."""
    assert run_ranks(1, _has_imports) == [True]
