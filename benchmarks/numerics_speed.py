"""How fast training steps are re-enacted: ``python benchmarks/numerics_speed.py [--write]``.

CPU time of one forward, backward and update of every rank, the best of several runs, on one thread: matrices are tiny,
and on a busy machine the threads of a BLAS wait for each other. Each case first asserts that it equals one
device. Limit: 1 s for 8 ranks of a 4-layer model. Exits with 1 when a limit is exceeded; ``--write`` writes
benchmarks/results/numerics_speed.json.
"""

import json
import os
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before numpy is imported

from shardwise.course.lessons import LESSONS, LessonRequest, make_lessons
from shardwise.course.lessons.tiny_run import batch_of, tiny_plan
from shardwise.course.numerics.reenact import gradient_error, one_device, reenact
from shardwise.course.numerics.tiny_model import initial_weights, tiny_model
from shardwise.engines.table import EngineName
from shardwise.layout import Layout

RESULTS = Path(__file__).parent / "results" / "numerics_speed.json"
REPEATS = 5
LIMIT_S = 1.0
CASES: tuple[tuple[str, EngineName, Layout, int], ...] = (
    ("8 ranks, DDP", "native", Layout(dp_shard=8, zero_stage=0), 1),
    ("8 ranks, FSDP", "native", Layout(dp_shard=8, zero_stage=3), 1),
    ("8 ranks, tensor and sequence parallel", "megatron", Layout(tp=8, zero_stage=0, sequence_parallel=True), 1),
    ("8 ranks, ring attention", "megatron", Layout(cp=8, zero_stage=0), 1),
    ("8 ranks, 4 stages of 2 replicas, 8 micro-batches", "megatron", Layout(pp=4, dp_shard=2, zero_stage=1), 8),
    ("8 ranks, tp 2, cp 2, pp 2", "megatron", Layout(tp=2, cp=2, pp=2, zero_stage=0, sequence_parallel=True), 4),
)
"""All with 4 layers of hidden size 64, 8 heads of 8 and 64 tokens a sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """CPU time of one case."""

    name: str
    cpu_s: float
    limit_s: float | None


def timing(name: str, engine: EngineName, layout: Layout, num_microbatches: int) -> Timing:
    """The shortest of several runs, each equal to one device."""
    model = tiny_model(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        vocab_size=128,
    )
    plan = tiny_plan(model, layout, engine=engine, seq_len=64, num_microbatches=num_microbatches)
    weights, batch = initial_weights(model), batch_of(plan, seed=1)
    expected = one_device(plan, weights, [batch])
    shortest_s = float("inf")
    for _ in range(REPEATS):
        start_s = process_time()
        found = reenact(plan, weights, [batch])
        shortest_s = min(shortest_s, process_time() - start_s)
        if gradient_error(found, expected) > 1e-12:
            sys.exit(f"not equal to one device: {name}")
    return Timing(name=name, cpu_s=round(shortest_s, 4), limit_s=LIMIT_S)


def lesson_timing(name: str) -> Timing:
    """One lesson with its defaults."""
    start_s = process_time()
    make_lessons(name, LessonRequest())
    return Timing(name=f"simulate {name}", cpu_s=round(process_time() - start_s, 4), limit_s=None)


def main() -> int:
    """Print a line per case and compare with its limit."""
    found = [timing(*case) for case in CASES]
    found += [lesson_timing(entry.name) for entry in LESSONS]
    for one in found:
        limit = "" if one.limit_s is None else f" (limit {one.limit_s:g} s)"
        print(f"{one.cpu_s:8.3f} s  {one.name}{limit}")
    if "--write" in sys.argv:
        report = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cases": [asdict(one) for one in found],
        }
        RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(any(one.limit_s is not None and one.cpu_s > one.limit_s for one in found))


if __name__ == "__main__":
    sys.exit(main())
