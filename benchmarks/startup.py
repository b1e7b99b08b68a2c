"""How long the command line takes from nothing: `make bench`, or `python benchmarks/startup.py [--runs N]`.

Each command is started in a process of its own. Wall and CPU seconds are given as the smallest and the median of the
runs; on a busy machine the smallest wall time and the CPU time are the ones to look at. The work is checked too: a
start that fails, or prints nothing, is no result. Modules are compiled by a first start, as an installation has them.
Writes benchmarks/results/startup.json.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "startup.json"
IMPORTS = "import gc; gc.disable(); import shardwise.cli.plan, shardwise.ask.searching, shardwise.render.first_screen"
"""All that a plan on one cluster imports to answer in text, as the program does it."""
PREDICT = ["predict", "llama-3.1-8b", "8xh100-sxm", "--dp-shard", "8", "--seq-len", "4096"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command, what its output has to contain, and how long it may take."""

    name: str
    words: tuple[str, ...]
    expected: str
    budget_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What the runs of one case took."""

    name: str
    command: str
    runs: int
    wall_min_s: float
    wall_median_s: float
    cpu_min_s: float
    cpu_median_s: float
    budget_s: float


CASES = (
    Case(name="bare interpreter", words=("-c", "print('ok')"), expected="ok", budget_s=0.0),
    Case(name="help", words=("-m", "shardwise", "--help"), expected="Commands:", budget_s=0.3),
    Case(name="help of a command", words=("-m", "shardwise", "plan", "--help"), expected="--seq-len", budget_s=0.3),
    Case(name="imports of plan", words=("-c", f"{IMPORTS}; print('ok'); gc.freeze()"), expected="ok", budget_s=0.25),
    Case(name="predict, JSON", words=("-m", "shardwise", *PREDICT, "--json"), expected='"fits"', budget_s=0.6),
    Case(name="predict, text", words=("-m", "shardwise", *PREDICT), expected="Step time", budget_s=0.6),
)


def time_once(case: Case, *, bytecode: str) -> tuple[float, float]:
    """Wall and CPU seconds of one start, whose modules are compiled in a folder."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *case.words], capture_output=True, text=True, check=False, env=environment)
    wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if case.expected not in done.stdout:
        printed = f"{done.stdout[-500:]}{done.stderr[-500:]}"
        raise SystemExit(f"{case.name} did not do its work (exit code {done.returncode}):\n{printed}")
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def time_case(case: Case, *, runs: int, bytecode: str) -> Timing:
    """The smallest and the median of several starts, after one that compiles and warms the file cache."""
    time_once(case, bytecode=bytecode)
    walls, cpus = zip(*(time_once(case, bytecode=bytecode) for _ in range(runs)), strict=True)
    return Timing(
        name=case.name,
        command=" ".join(("python", *case.words)),
        runs=runs,
        wall_min_s=round(min(walls), 4),
        wall_median_s=round(statistics.median(walls), 4),
        cpu_min_s=round(min(cpus), 4),
        cpu_median_s=round(statistics.median(cpus), 4),
        budget_s=case.budget_s,
    )


def main() -> None:
    """Time every case, print a table and record the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as bytecode:
        timings = [time_case(case, runs=arguments.runs, bytecode=bytecode) for case in CASES]
    print(f"{'case':20} {'wall min':>9} {'median':>9} {'CPU min':>9} {'budget':>9}")
    for timing in timings:
        print(
            f"{timing.name:20} {timing.wall_min_s:8.3f}s {timing.wall_median_s:8.3f}s {timing.cpu_min_s:8.3f}s "
            f"{timing.budget_s:8.1f}s"
        )
    facts = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load_average_1min": round(os.getloadavg()[0], 2),
        "timings": [asdict(timing) for timing in timings],
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}")


if __name__ == "__main__":
    main()
