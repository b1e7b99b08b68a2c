"""How fast a step of 16,384 GPUs is drawn: ``python benchmarks/timeline_speed.py [--write]``.

Llama 3.1 405B in 16 stages of 7 chunks with 16 micro-batches, and with 128 of them: prediction, representative ranks,
trace, page and picture, as ``shardwise timeline`` writes them. Wall and CPU time, the best of three
runs; the work is asserted. Limit: 2 s of CPU time. Exits with 1 beyond it; ``--write`` writes
benchmarks/results/timeline_speed.json.
"""

import json
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter, process_time

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict.timeline import predict_timeline
from shardwise.recipe import Recipe
from shardwise.render.html_timeline import timeline_html
from shardwise.render.json_text import json_line
from shardwise.render.json_trace import trace_object
from shardwise.render.svg_timeline import timeline_svg

RESULTS = Path(__file__).parent / "results" / "timeline_speed.json"
LIMIT_S = 2.0
REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One case: everything the command does besides reading the catalogue."""

    name: str
    num_spans: int
    trace_bytes: int
    wall_s: float
    cpu_s: float
    limit_s: float


def plan_of(global_batch_size: int) -> Plan:
    """Llama 3.1 405B on 16,384 H100."""
    return Plan(
        model=read_model("llama-3.1-405b"),
        cluster=read_cluster("2048 x dgx-h100"),
        recipe=Recipe(seq_len=8192, global_batch_size=global_batch_size),
        layout=Layout(dp_shard=128, tp=8, pp=16, vpp=7, schedule="interleaved", sequence_parallel=True, zero_stage=1),
        engine="megatron",
    )


def timed(plan: Plan) -> Timing:
    """The shortest of several runs."""
    best_s = best_cpu_s = float("inf")
    for _ in range(REPEATS):
        start_s, start_cpu_s = perf_counter(), process_time()
        timeline = predict_timeline(plan)
        trace = json_line(trace_object(plan=plan, timeline=timeline))
        page = timeline_html(plan=plan, timeline=timeline)
        picture = timeline_svg(timeline, title=plan.model.name)
        best_s, best_cpu_s = min(best_s, perf_counter() - start_s), min(best_cpu_s, process_time() - start_cpu_s)
        assert timeline.num_ranks == 16_384
        assert len(timeline.ranks) >= 5
        assert all(text for text in (trace, page, picture))
    name = f"{plan.num_microbatches} micro-batches, {len(timeline.ranks)} of 16,384 ranks"
    return Timing(
        name=name,
        num_spans=timeline.num_spans,
        trace_bytes=len(trace),
        wall_s=round(best_s, 3),
        cpu_s=round(best_cpu_s, 3),
        limit_s=LIMIT_S,
    )


def main() -> int:
    """Print every case; 1 when one takes too long."""
    timings = [timed(plan_of(batch)) for batch in (2048, 16_384)]
    for timing in timings:
        print(
            f"{timing.name}: {timing.num_spans:,} spans, {timing.trace_bytes / 1e6:.1f} MB, "
            f"{timing.wall_s:.2f} s (CPU {timing.cpu_s:.2f} s), limit {timing.limit_s:.0f} s"
        )
    if "--write" in sys.argv:
        record = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cases": [asdict(timing) for timing in timings],
        }
        RESULTS.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return int(any(timing.cpu_s > timing.limit_s for timing in timings))


if __name__ == "__main__":
    raise SystemExit(main())
