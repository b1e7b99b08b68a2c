"""Settings of every test run."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent

# One test process runs on each core, so that torch's threads in one would only wait for those of another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A deadline measures who else is working on the machine. In continuous integration the same examples are tried each
# time, so that a failure is always about the change at hand.
settings.register_profile(
    "shardwise", deadline=None, derandomize=bool(os.environ.get("CI")), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shardwise")

# A shell's background job ignores Ctrl-C and hands that down to the programs that tests start, and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG_FIRST = ("train", "course", "launch", "search", "story")
"""Folders whose files take longest, real processes above all."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: a worker that was left one of them for the end would work alone.

    pytest-xdist hands files out in this order under ``--no-loadscope-reorder``; by itself it begins with those of many
    tests, which are short ones.
    """
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
    return LONG_FIRST.index(folder) if folder in LONG_FIRST else len(LONG_FIRST)
