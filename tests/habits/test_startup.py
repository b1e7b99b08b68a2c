"""The command line starts fast: its work is counted in calls, imports with them; ``make bench`` holds the seconds."""

import subprocess
import sys

import pytest

from call_counts import count_calls, count_calls_of_a_start

PREDICT = ["predict", "llama-3.1-8b", "8xh100-sxm", "--dp-shard", "8", "--seq-len", "4096"]
MODULES = "import runpy, sys; sys.argv[0] = 'shardwise'\ntry: runpy.run_module('shardwise', run_name='__main__')\n"
MODULES += "finally: print(*sys.modules, file=sys.stderr)"
HEAVY = {"numpy", "pandas", "pydantic", "torch", "rich", "yaml", "transformers", "matplotlib", "pyarrow"}


def modules_of_a_start(words: list[str]) -> set[str]:
    """The packages that ``python -m shardwise WORDS`` has imported when it ends."""
    done = subprocess.run([sys.executable, "-c", MODULES, *words], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stderr.split()}


def test_help_is_little_work():
    """22,000 calls were 0.04 s where they were measured; the limit of its 0.3 s is six times that."""
    assert count_calls_of_a_start(["--help"]) < 60_000


def test_help_imports_nothing_heavy():
    assert modules_of_a_start(["--help"]) & HEAVY == set()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_cold_prediction_stays_within_its_budget(options):
    """548,000 calls (0.24 s) as text, 446,000 as JSON; half of them import. With the search 700,000."""
    assert count_calls_of_a_start([*PREDICT, *options]) < 650_000


@pytest.mark.parametrize(("options", "needed"), [(["--json"], set()), ([], {"rich"})])
def test_a_prediction_needs_no_arrays(options, needed):
    assert modules_of_a_start([*PREDICT, *options]) & HEAVY == needed


def test_a_plan_needs_arrays_and_no_torch():
    modules = modules_of_a_start(["plan", "llama-3.1-8b", "8xh100-sxm", "--json"])
    assert "numpy" in modules
    assert modules.isdisjoint({"torch", "pandas", "transformers"})


def test_more_work_is_more_calls():
    assert 1000 <= count_calls(lambda: [abs(number) for number in range(1000)]) < 1010
