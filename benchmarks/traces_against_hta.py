"""Our overlap and stragglers beside Holistic Trace Analysis's on the same traces, old and modern names; a large file.

Usage: python benchmarks/traces_against_hta.py CLONE --python PATH [--large-mb 500] [--write]

CLONE is facebookresearch/HolisticTraceAnalysis outside this checkout, PATH a Python that has it installed. Nothing of
theirs is copied. The large file is made by repeating the events of one public trace with later times.
"""

import argparse
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from shardwise.measure.intervals import intersection, total_s, union
from shardwise.measure.profile import profile_traces
from shardwise.measure.rank_trace import read_rank_trace
from shardwise.measure.trace_records import RankTrace
from shardwise.measure.trace_steps import step_windows

PEERS = Path(__file__).parent / "peers"
DRIVER = PEERS / "hta_overlap.py"
STRAGGLERS = PEERS / "hta_stragglers.py"
TWO_RANKS = ("trace_filter/sampled_rank-0.json.gz", "trace_filter/sampled_rank-1.json.gz")
TRACES = (
    "trace_filter/sampled_rank-0.json.gz",
    "trace_filter/sampled_rank-1.json.gz",
    "nccl_parser_config/nccl_data.json.gz",
    "trace_diff/control/control.json.gz",
    "trace_diff/test/test.json.gz",
    "df_index_resolver/df_index_resolver.json.gz",
    "negative_queue_length_values_check/rank0.json.gz",
)
LARGE_SOURCE = "negative_queue_length_values_check/rank0.json.gz"
REPEAT_US = 2e6


def overlap_as_hta_counts(trace: RankTrace) -> float:
    """Percentage of communication under other kernels, without copies, the last profiler step, and work whose launch
    is not in the file, all of which HTA leaves out."""
    windows = step_windows(trace)
    kept = windows[: max(1, len(windows) - 1)]
    works = [work for window in kept for work in window.works if work.launch_s is not None]
    compute = union((w.start_s, w.end_s) for w in works if w.kind == "kernel" and w.family != "communication")
    communication = union((w.start_s, w.end_s) for w in works if w.family == "communication")
    return 100 * total_s(intersection(communication, compute)) / total_s(communication)


def hta_overlap(python: Path, path: Path) -> str:
    """Its percentage, or the last line of its error."""
    done = subprocess.run([python, DRIVER, path], capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:60]
    return f"{json.loads(done.stdout.strip().splitlines()[-1])['overlap_percent']:.2f} %"


def with_modern_names(path: Path, folder: Path) -> Path:
    """The same trace with the kernel names that NCCL gives since 2.19."""
    text = gzip.decompress(path.read_bytes()).decode().replace("ncclKernel_", "ncclDevKernel_")
    renamed = folder / f"modern-{path.name}"
    renamed.write_bytes(gzip.compress(text.encode()))
    return renamed


def rows(clone: Path, python: Path, folder: Path) -> Iterator[str]:
    """The table, line by line."""
    yield "| trace | ours | HTA | ours, modern names | HTA, modern names |"
    yield "|---|---:|---:|---:|---:|"
    for name in TRACES:
        path = clone / "tests" / "data" / name
        modern = with_modern_names(path, folder)
        ours = [f"{overlap_as_hta_counts(read_rank_trace(trace)):.2f} %" for trace in (path, modern)]
        theirs = [hta_overlap(python, trace) for trace in (path, modern)]
        yield f"| {name} | {ours[0]} | {theirs[0]} | {ours[1]} | {theirs[1]} |"


def hta_stragglers(python: Path, paths: list[Path]) -> str:
    """The rank that it finds, or the last line of its error."""
    done = subprocess.run([python, STRAGGLERS, *paths], capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip().splitlines()[-1][:60]
    return f"rank {json.loads(done.stdout.strip().splitlines()[-1])['stragglers'][0]}"


def our_waits(paths: list[Path]) -> str:
    """How long each rank waits in collectives a step; the straggler is the one that waits least."""
    profile = profile_traces(paths)
    waits = ", ".join(f"{1e3 * rank.wait_s:.1f} ms" for rank in profile.ranks if rank.wait_s is not None)
    least = min(profile.ranks, key=lambda rank: rank.wait_s or 0.0)
    return f"rank {least.rank} waits least of {waits}"


def straggler_rows(clone: Path, python: Path, folder: Path) -> Iterator[str]:
    """The rank that the others wait for, by either kernel names."""
    paths = [clone / "tests" / "data" / name for name in TWO_RANKS]
    modern = [with_modern_names(path, folder) for path in paths]
    yield "| kernel names | ours | HTA |"
    yield "|---|---|---|"
    for names, found in (("before NCCL 2.19", paths), ("since", modern)):
        yield f"| {names} | {our_waits(found)} | {hta_stragglers(python, found)} |"


def large_file(source: Path, target: Path, *, num_bytes: int) -> None:
    """Repeat the events of a trace, each time later, until the file is large."""
    trace = json.loads(gzip.decompress(source.read_bytes()))
    events = trace.pop("traceEvents")
    with target.open("w", encoding="utf-8") as file:
        file.write(json.dumps(trace)[:-1] + ', "traceEvents": [\n')
        is_first = True
        while file.tell() < num_bytes:
            for event in events:
                file.write(("" if is_first else ",\n") + json.dumps(event))
                is_first = False
                if "ts" in event:
                    event["ts"] += REPEAT_US
        file.write("]}")


def timed_read(path: Path) -> str:
    """Seconds and memory of ``shardwise profile`` on one file, in a process of its own."""
    before = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "shardwise", "profile", path, "--json"], stdout=subprocess.DEVNULL, check=True
    )
    seconds = time.perf_counter() - before
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    size, gib, cpu_s = path.stat().st_size / 1e6, used.ru_maxrss / 2**20, used.ru_utime + used.ru_stime
    return (
        f"{size:.0f} MB profiled in {seconds:.1f} s ({cpu_s:.1f} s of CPU time; the machine's load was "
        f"{os.getloadavg()[0]:.0f}), at most {gib:.2f} GiB of memory"
    )


def main() -> None:
    """Print the table, and write it when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clone", type=Path)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--large-mb", type=int, default=500)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "large.json"
        large_file(arguments.clone / "tests" / "data" / LARGE_SOURCE, large, num_bytes=arguments.large_mb * 10**6)
        reading = timed_read(large)
        table = list(rows(arguments.clone, arguments.python, Path(folder)))
        stragglers = list(straggler_rows(arguments.clone, arguments.python, Path(folder)))
    report = "\n".join(
        [
            "# Profiler traces: our overlap and Holistic Trace Analysis's",
            "",
            "`python benchmarks/traces_against_hta.py CLONE --python PATH --write`, HTA 0.5.0, its own traces.",
            "Overlap is the share of communication time under which other kernels run, without the last profiler step",
            "and without work whose launch is not in the file, as HTA counts it. The last two columns are the same",
            "traces with the kernel names of NCCL since 2.19.",
            "",
            *table,
            "",
            "Who the others wait for in the two ranks of one step; HTA looks for names that begin with `ncclKernel`.",
            "",
            *stragglers,
            "",
            f"A large file (a public trace repeated): {reading}, on two cores.",
            "",
        ]
    )
    print(report)
    if arguments.write:
        day = datetime.now(UTC).date().isoformat()
        (Path(__file__).parent / "results" / f"traces_against_hta-{day}.md").write_text(report, encoding="utf-8")


if __name__ == "__main__":
    main()
