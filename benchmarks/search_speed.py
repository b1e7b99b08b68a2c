"""Time and memory of whole searches, each in processes of its own: ``python benchmarks/search_speed.py [--write]``.

Limits of clock time on two processors: one second for every layout of Llama-3.1-405B on 16,384 H100 (at least ten
million) and 1.5 s for the command; two for DeepSeek-V3 on 2,048; 0.4 for Llama-3.1-8B on 8; three on 100,000 GPUs; 1 GB
of memory. GPT-3 175B on 1,024 A100 over a canonical space, with its front of time and memory: 0.2 s, in one process.

Of each search the run with the least clock time counts, with a second process beside it (``shardwise.search.in_team``)
and without. CPU seconds are those of both processes: what dividing the work costs. Other work on the machine makes
clock times long and keeps the second process from helping, so the record says how loaded it was. Modules are compiled
before a command is timed, as an installation has them. Exits with 1 when a limit is exceeded.

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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.recipe import Recipe
from shardwise.search import IntRange, SearchBounds, Team, in_team, num_usable_cpus, question_of, search
from shardwise.search.estimates import estimate_space

RESULT = Path(__file__).parent / "results" / "search_speed.json"
DRIVER = Path(__file__).parent / "peers" / "calculon_rate.py"
MOST_MEMORY_BYTES = 1e9
CALCULON_RATIO = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A search with its limit."""

    model: str
    cluster: str
    seq_len: int
    global_batch_size: int
    engine: str
    limit_s: float
    command_limit_s: float | None = None
    canonical: bool = False
    """tp 1 to 8, pp dividing the layers, micro-batches 1 to 16, legal vpp, three recompute modes, ZeRO 0 to 3."""
    least_layouts: int = 0


CASES: Mapping[str, Case] = {
    "405B on 16,384 H100": Case(
        model="llama-3.1-405b",
        cluster="2048xdgx-h100",
        seq_len=8192,
        global_batch_size=2048,
        engine="native",
        limit_s=1.0,
        command_limit_s=1.5,
        least_layouts=10_000_000,
    ),
    "405B on 16,384 H100, Megatron": Case(
        model="llama-3.1-405b",
        cluster="2048xdgx-h100",
        seq_len=8192,
        global_batch_size=2048,
        engine="megatron",
        limit_s=1.0,
        command_limit_s=1.5,
        least_layouts=10_000_000,
    ),
    "DeepSeek-V3 on 2,048 H800": Case(
        model="deepseek-v3-671b",
        cluster="256xhgx-h800",
        seq_len=4096,
        global_batch_size=15360,
        engine="megatron",
        limit_s=2.0,
    ),
    "8B on 8 H100": Case(
        model="llama-3.1-8b",
        cluster="8xh100-sxm",
        seq_len=8192,
        global_batch_size=64,
        engine="native",
        limit_s=0.4,
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


def measure(case: Case, *, num_processes: int) -> dict[str, float]:
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

    def answer(team: Team) -> dict[str, float]:
        if case.canonical:
            found = estimate_space(question_of(**asked), bounds)
            considered, evaluated = found.valid.considered, found.num_evaluated
            predicted, best_s = 0, float(found.step_s.min())
        else:
            result = search(**asked, bounds=bounds, team=team)
            considered, evaluated = result.space.layouts_considered, result.space.layouts_evaluated
            predicted, best_s = result.space.layouts_predicted, result.plans[0].prediction.time.step_s
        return {
            "layouts_considered": considered,
            "layouts_evaluated": evaluated,
            "layouts_predicted": predicted,
            "best_step_s": round(best_s, 4),
        }

    clock_s, cpu_s = perf_counter(), process_time()
    found = in_team(answer, num_processes=num_processes)
    clock_s, cpu_s = perf_counter() - clock_s, process_time() - cpu_s
    own, other = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "clock_s": round(clock_s, 3),
        "cpu_s": round(cpu_s + other.ru_utime + other.ru_stime, 3),
        "memory_bytes": (own.ru_maxrss + other.ru_maxrss) * 1024,
        **found,
    }


def least_of(measured: Sequence[dict[str, float]]) -> dict[str, float]:
    """The run that took least: other work on the machine only adds."""
    return min(measured, key=lambda one: one["clock_s"])


def command_s(case: Case, *, bytecode: str) -> tuple[float, float]:
    """Clock and CPU seconds of the whole command, its modules compiled into a folder."""
    command = [sys.executable, "-m", "shardwise", "plan", case.model, case.cluster, "--seq-len", str(case.seq_len)]
    command += ["--global-batch-size", str(case.global_batch_size), "--engine", case.engine]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    after, clock_s = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter() - started
    return clock_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_own_process(name: str, *, num_processes: int) -> dict[str, float]:
    """Measure a case from a fresh process."""
    command = [sys.executable, __file__, "--case", name, "--processes", str(num_processes)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    measured: dict[str, float] = json.loads(done.stdout)
    return measured


def measure_case(name: str, *, repeat: int, bytecode: str) -> dict[str, float]:
    """The least of a few runs with the second process, without it, and of the whole command."""
    case = CASES[name]
    most = 1 if case.canonical else num_usable_cpus()
    measured = least_of([in_own_process(name, num_processes=most) for _ in range(repeat)])
    if not case.canonical:
        alone = least_of([in_own_process(name, num_processes=1) for _ in range(repeat)])
        clock_s, cpu_s = min(command_s(case, bytecode=bytecode) for _ in range(repeat + 1))
        measured |= {"alone_clock_s": alone["clock_s"], "alone_cpu_s": alone["cpu_s"]}
        measured |= {"command_clock_s": round(clock_s, 3), "command_cpu_s": round(cpu_s, 3)}
    return {**measured, "limit_s": case.limit_s, "load_average": round(os.getloadavg()[0], 1)}


def is_over(case: Case, measured: Mapping[str, float]) -> bool:
    """Whether a limit is exceeded."""
    return (
        measured["clock_s"] > case.limit_s
        or (case.command_limit_s is not None and measured["command_clock_s"] > case.command_limit_s)
        or measured["memory_bytes"] > MOST_MEMORY_BYTES
        or measured["layouts_considered"] < case.least_layouts
    )


def line_of(case: Case, measured: Mapping[str, float]) -> str:
    """A case on a line."""
    alone = command = ""
    if not case.canonical:
        alone = f"; alone {measured['alone_clock_s']:.2f} s, {measured['alone_cpu_s']:.2f} CPU s"
        command = f"; the command {measured['command_clock_s']:.2f} s, {measured['command_cpu_s']:.2f} CPU s"
    return (
        f"{measured['clock_s']:.2f} s (limit {case.limit_s} s), {measured['cpu_s']:.2f} CPU s{alone}{command}; "
        f"{measured['memory_bytes'] / 1e6:.0f} MB, {measured['layouts_considered']:,} layouts "
        f"({measured['layouts_evaluated']:,} one by one, {measured['layouts_predicted']} predicted)"
        f"{'  OVER' if is_over(case, measured) else ''}"
    )


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
    parser.add_argument("--processes", type=int, default=1, help="of the case")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--repeat", type=int, default=3, help="processes of each case, of which the least counts")
    parser.add_argument("--calculon", type=Path, help="a clone of calculon-ai/calculon")
    parser.add_argument("--python", type=Path, help="a Python with its requirements")
    arguments = parser.parse_args()
    if arguments.case:
        json.dump(measure(CASES[arguments.case], num_processes=arguments.processes), sys.stdout)
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
        ours = case_s["layouts_considered"] / case_s["alone_cpu_s"]
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
