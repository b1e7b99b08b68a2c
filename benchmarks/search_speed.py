"""CPU seconds and memory of searches, each in a process of its own: ``python benchmarks/search_speed.py [--write]``.

A search runs in one process, so its CPU seconds are what a user waits. Limits of the whole command, which is started
cold: 0.9 s for Llama-3.1-8B on 8 H100, 1.2 s for 70B on 64, 2.0 s for every layout of 405B on 16,384 (at least ten
million). Limits of the search alone: 3 s for DeepSeek-V3 on 2,048 GPUs and for 405B on 100,000; 0.2 s for GPT-3 175B on
1,024 A100 over a canonical space, with its front of time and memory. None takes more than 1 GB of memory.

Of each search the run that took least counts, because other work on the machine only adds. Modules are compiled before
a command is timed, as an installation has them. Exits with 1 when a limit is exceeded.

``--calculon FOLDER`` runs Calculon's own exhaustive search over GPT-3 175B on as many A100 for 20 CPU seconds with
``FOLDER/../venv/bin/python`` (or ``--python``), and compares rates. Nothing of theirs is copied.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import process_time

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.recipe import Recipe
from shardwise.search import IntRange, SearchBounds, question_of, search
from shardwise.search.screening import screen

RESULT = Path(__file__).parent / "results" / "search_speed.json"
DRIVER = Path(__file__).parent / "peers" / "calculon_rate.py"
MOST_MEMORY_BYTES = 1e9
CALCULON_RATIO = 10_000
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A search with its limit."""

    model: str
    cluster: str
    seq_len: int
    global_batch_size: int
    engine: str
    limit_s: float | None = None
    """Of the search."""
    command_limit_s: float | None = None
    """Of the command, from a cold start."""
    canonical: bool = False
    """tp 1 to 8, pp dividing the layers, micro-batches 1 to 16, legal vpp, three recompute modes, ZeRO 0 to 3."""
    least_layouts: int = 0


CASES: Mapping[str, Case] = {
    "8B on 8 H100": Case(
        model="llama-3.1-8b",
        cluster="8xh100-sxm",
        seq_len=8192,
        global_batch_size=64,
        engine="native",
        command_limit_s=0.9,
    ),
    "70B on 64 H100": Case(
        model="llama-3.1-70b",
        cluster="64xh100-sxm",
        seq_len=8192,
        global_batch_size=512,
        engine="native",
        command_limit_s=1.2,
    ),
    "405B on 16,384 H100": Case(
        model="llama-3.1-405b",
        cluster="2048xdgx-h100",
        seq_len=8192,
        global_batch_size=2048,
        engine="native",
        command_limit_s=2.0,
        least_layouts=10_000_000,
    ),
    "405B on 16,384 H100, Megatron": Case(
        model="llama-3.1-405b",
        cluster="2048xdgx-h100",
        seq_len=8192,
        global_batch_size=2048,
        engine="megatron",
        limit_s=2.0,
        least_layouts=10_000_000,
    ),
    "DeepSeek-V3 on 2,048 H800": Case(
        model="deepseek-v3-671b",
        cluster="256xhgx-h800",
        seq_len=4096,
        global_batch_size=15360,
        engine="megatron",
        limit_s=3.0,
    ),
    "405B on 100,000 H100": Case(
        model="llama-3.1-405b",
        cluster="12500xdgx-h100",
        seq_len=8192,
        global_batch_size=100_000,
        engine="native",
        limit_s=3.0,
    ),
    "GPT-3 175B on 1,024 A100, canonical": Case(
        model="gpt3-175b",
        cluster="128xdgx-a100-80",
        seq_len=2048,
        global_batch_size=1536,
        engine="megatron",
        limit_s=0.2,
        canonical=True,
    ),
}


def measure(case: Case) -> dict[str, float]:
    """One search: what is asked for is read first, as a running service would have it."""
    model, cluster = read_model(case.model), read_cluster(case.cluster)
    recipe = Recipe(seq_len=case.seq_len, global_batch_size=case.global_batch_size)
    bounds = SearchBounds()
    if case.canonical:
        bounds = SearchBounds(
            tp=IntRange(low=1, high=8),
            cp=IntRange(low=1, high=1),
            dp_replicate=IntRange(low=1, high=1),
            micro_batch_size=IntRange(low=1, high=16),
            offload=("none",),
            activation_offload=False,
        )
    asked = {"model": model, "cluster": cluster, "recipe": recipe, "engine": case.engine}

    started_s = process_time()
    if case.canonical:
        found = screen(question_of(**asked), bounds)
        considered, evaluated = found.valid.considered, found.num_evaluated
        predicted, best_s = 0, float(found.step_s.min())
    else:
        result = search(**asked, bounds=bounds)
        considered, evaluated = result.space.layouts_considered, result.space.layouts_evaluated
        predicted, best_s = result.space.layouts_predicted, result.plans[0].prediction.time.step_s
    return {
        "cpu_s": round(process_time() - started_s, 3),
        "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "layouts_considered": considered,
        "layouts_evaluated": evaluated,
        "layouts_predicted": predicted,
        "best_step_s": round(best_s, 4),
    }


def command_s(case: Case, *, bytecode: str) -> float:
    """CPU seconds of the whole command, its modules compiled into a folder."""
    command = [sys.executable, "-m", "shardwise", "plan", case.model, case.cluster, "--seq-len", str(case.seq_len)]
    command += ["--global-batch-size", str(case.global_batch_size), "--engine", case.engine, "--no-what-if"]
    environment = {**os.environ, **ONE_THREAD, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_own_process(name: str) -> dict[str, float]:
    """Measure a case from a fresh process."""
    command = [sys.executable, __file__, "--case", name]
    environment = {**os.environ, **ONE_THREAD}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def measure_case(name: str, *, repeat: int, bytecode: str) -> dict[str, float]:
    """The least of a few runs of the search, and of the whole command."""
    case = CASES[name]
    measured = min((in_own_process(name) for _ in range(repeat)), key=lambda one: one["cpu_s"])
    if not case.canonical:
        least_s = min(command_s(case, bytecode=bytecode) for _ in range(repeat + 1))
        measured["command_cpu_s"] = round(least_s, 3)
    return {**measured, "load_average": round(os.getloadavg()[0], 1)}


def is_over(case: Case, measured: Mapping[str, float]) -> bool:
    """Whether a limit is exceeded."""
    return (
        (case.limit_s is not None and measured["cpu_s"] > case.limit_s)
        or (case.command_limit_s is not None and measured["command_cpu_s"] > case.command_limit_s)
        or measured["memory_bytes"] > MOST_MEMORY_BYTES
        or measured["layouts_considered"] < case.least_layouts
    )


def line_of(case: Case, measured: Mapping[str, float]) -> str:
    """A case on a line."""
    command = "" if case.canonical else f"; the command {_seconds(measured['command_cpu_s'], case.command_limit_s)}"
    return (
        f"{_seconds(measured['cpu_s'], case.limit_s)}{command}; "
        f"{measured['memory_bytes'] / 1e6:.0f} MB, {measured['layouts_considered']:,} layouts "
        f"({measured['layouts_evaluated']:,} one by one, {measured['layouts_predicted']} predicted)"
        f"{'  OVER' if is_over(case, measured) else ''}"
    )


def _seconds(cpu_s: float, limit_s: float | None) -> str:
    """CPU seconds beside their limit, where there is one."""
    return f"{cpu_s:.2f} CPU s" + ("" if limit_s is None else f" (limit {limit_s} s)")


def calculon_rate(folder: Path, python: Path) -> dict[str, float]:
    """Combinations per CPU second of Calculon's search."""
    done = subprocess.run(
        [str(python), str(DRIVER.resolve())],
        check=True,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
    )
    answer = json.loads(done.stdout)
    return {"combinations": answer["combinations"], "cpu_s": answer["cpu_s"], "best": answer["best"]}


def main() -> int:
    """Print a line per case and compare with its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--repeat", type=int, default=3, help="processes of each case, of which the least counts")
    parser.add_argument("--calculon", type=Path, help="a clone of calculon-ai/calculon")
    parser.add_argument("--python", type=Path, help="a Python with its requirements")
    arguments = parser.parse_args()
    if arguments.case:
        json.dump(measure(CASES[arguments.case]), sys.stdout)
        return 0
    exceeded = False
    record: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as bytecode:
        for name, case in CASES.items():
            record[name] = measure_case(name, repeat=arguments.repeat, bytecode=bytecode)
            exceeded |= is_over(case, record[name])
            print(f"{name}: {line_of(case, record[name])}", flush=True)
    if arguments.calculon:
        python = arguments.python or arguments.calculon.parent / "venv" / "bin" / "python"
        answer = calculon_rate(arguments.calculon.resolve(), python)
        rate = answer["combinations"] / answer["cpu_s"]
        case_s = record["405B on 16,384 H100"]
        ours = case_s["layouts_considered"] / case_s["cpu_s"]
        canonical = record["GPT-3 175B on 1,024 A100, canonical"]
        own = canonical["layouts_considered"] / canonical["cpu_s"]
        print(f"Calculon: {answer['combinations']:,} combinations in {answer['cpu_s']:.1f} CPU s, {rate:.0f} per s")
        print(f"ours over Calculon: {ours / rate:,.0f} times over all points, {own / rate:,.0f} times on GPT-3's space")
        print(f"Calculon's best of those: {answer['best']}")
        record["Calculon, GPT-3 175B on 1,024 A100"] = {
            "combinations": answer["combinations"],
            "cpu_s": round(answer["cpu_s"], 1),
            "combinations_per_s": round(rate, 1),
        }
        exceeded |= ours < CALCULON_RATIO * rate
    if arguments.write:
        RESULT.write_text(json.dumps(record, indent=2) + "\n")
        print(f"wrote {RESULT}")
    return int(exceeded)


if __name__ == "__main__":
    sys.exit(main())
