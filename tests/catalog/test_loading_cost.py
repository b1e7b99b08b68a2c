"""Reading one cluster is cheap and imports nothing heavy."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
MEASURE = """
import json, sys
sys.path.append(sys.argv[1])
import shardwise.catalog
modules = sorted(name.partition(".")[0] for name in sys.modules)
from call_counts import count_calls
calls = [count_calls(lambda: shardwise.catalog.read_cluster("64xh100-sxm")) for _ in range(2)]
print(json.dumps({"calls": calls, "modules": modules}))
"""
HEAVY = {"numpy", "pandas", "pydantic", "torch", "typer", "rich", "yaml", "transformers"}


@cache
def measured():
    answer = subprocess.run([sys.executable, "-c", MEASURE, str(TESTS)], capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


def test_one_cluster_is_read_from_its_own_files_and_kept():
    """Seen: 35,000 calls (6 ms) the first time, 309 the second."""
    first, second = measured()["calls"]
    assert first < 60_000
    assert second < 600


def test_the_catalogue_imports_nothing_heavy():
    assert HEAVY & set(measured()["modules"]) == set()


def test_a_heavy_import_would_be_seen():
    assert {"json", "shardwise"} <= set(measured()["modules"])
