"""The command line starts fast. CPU seconds are measured, because wall time depends on who else is working."""

import resource
import subprocess
import sys

import pytest

HELP_BUDGET_S = 0.3
PREDICT_BUDGET_STARTS = 9
"""Of a bare start that imports numpy (0.06 to 0.1 s), so that a slow machine changes both."""
PREDICT = ["predict", "llama-3.1-8b", "8xh100-sxm", "--dp-shard", "8", "--seq-len", "4096"]
RUNS = 3


def cpu_seconds(words: list[str]) -> float:
    """The smallest CPU time of a few starts."""
    return min(_cpu_seconds_once(words) for _ in range(RUNS))


def _cpu_seconds_once(words: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_starts_within_its_budget():
    assert cpu_seconds(["-m", "shardwise", "--help"]) <= HELP_BUDGET_S


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_cold_prediction_stays_within_its_budget(options):
    bare_s = cpu_seconds(["-c", "import numpy"])
    assert cpu_seconds(["-m", "shardwise", *PREDICT, *options]) <= PREDICT_BUDGET_STARTS * bare_s


def test_slow_work_is_noticed():
    code = "import time; end = time.process_time() + 0.35\nwhile time.process_time() < end: pass"
    assert cpu_seconds(["-c", code]) > HELP_BUDGET_S
