"""How fast pipelines are simulated: ``python benchmarks/simulation_speed.py [--write]``.

CPU time, the best of several runs; each case first asserts the work it did, so that skipping work cannot look fast.
With simpy installed (``pip install simpy``; it is not a dependency) the largest case is also run there, step by step as
a simpy user would write it, and has to end at the same moment. Limits: 30 ms for 16 ranks and 512 micro-batches, 1 s
for 64 and 512 with every pass run. Exits with 1 when a limit is exceeded; ``--write`` writes
benchmarks/results/simulation_speed.json.
"""

import json
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from time import process_time

from shardwise.schedules.make import make_schedule, settled
from shardwise.schedules.shape import ScheduleShape
from shardwise.simulate.pipeline import run_pipeline
from shardwise.simulate.pipeline_graph import GraphStyle, build_graph, end_times_s, pipeline_graph
from shardwise.simulate.pipeline_times import ChunkTimes, PipelineTimes, node_durations_s
from shardwise.simulate.steady_state import _steady_graph

RESULTS = Path(__file__).parent / "results" / "simulation_speed.json"
WIDE = ScheduleShape(name="1f1b", pp=16, num_microbatches=512)
WIDEST = ScheduleShape(name="1f1b", pp=64, num_microbatches=512)
DEEP = ScheduleShape(name="interleaved", pp=16, vpp=8, num_microbatches=512)
ONE = ChunkTimes(forward_s=1.0, input_backward_s=1.1, weight_backward_s=0.9)
WIDE_TIMES = PipelineTimes(chunks=(ONE,) * 16, sends_s=(0.05,) * 15)
WIDEST_TIMES = PipelineTimes(chunks=(ONE,) * 64, sends_s=(0.05,) * 63)
DEEP_TIMES = PipelineTimes(chunks=(ONE,) * 128, sends_s=(0.05,) * 127)
REPEATS = 7
SENDING = GraphStyle(sends="overlapped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """CPU time of one case."""

    name: str
    cpu_ms: float
    limit_ms: float | None


def timed(name: str, work: Callable[[], object], *, limit_ms: float | None = None) -> Timing:
    """The shortest of several runs."""
    shortest_s = float("inf")
    for _ in range(REPEATS):
        start_s = process_time()
        work()
        shortest_s = min(shortest_s, process_time() - start_s)
    return Timing(name=name, cpu_ms=shortest_s * 1e3, limit_ms=limit_ms)


def forget() -> None:
    """Empty every cache, as in a process that has just started."""
    for cached in (make_schedule, pipeline_graph, _steady_graph):
        cached.cache_clear()


def cold(shape: ScheduleShape, times: PipelineTimes, *, may_extrapolate: bool = True) -> None:
    """One step with nothing cached."""
    forget()
    run_pipeline(shape, times, may_extrapolate=may_extrapolate)


def timings() -> list[Timing]:
    """Every case of ours."""
    graph = pipeline_graph(settled(WIDE), SENDING)
    durations = node_durations_s(WIDE_TIMES, graph.schedule)
    check(graph.num_nodes == 31_744, "31,744 passes and sends")
    check(run_pipeline(DEEP, DEEP_TIMES).is_extrapolated, "the deep step is made from a shorter one")
    full = run_pipeline(DEEP, DEEP_TIMES, may_extrapolate=False)
    short = run_pipeline(DEEP, DEEP_TIMES)
    check(abs(short.makespan_s / full.makespan_s - 1) < 1e-12, "and takes as long")
    orders = make_schedule(settled(WIDE))
    return [
        timed("16 x 512, times of 31,744 passes and sends", lambda: end_times_s(graph, durations), limit_ms=30.0),
        timed("16 x 512, a step, shape seen before", lambda: run_pipeline(WIDE, WIDE_TIMES), limit_ms=30.0),
        timed("16 x 512, a step, nothing cached", lambda: cold(WIDE, WIDE_TIMES), limit_ms=30.0),
        timed("16 x 512, its orders", lambda: make_schedule.__wrapped__(settled(WIDE))),
        timed("16 x 512, its graph", lambda: build_graph(orders, SENDING)),
        timed(
            "64 x 512, all 130,048 passes and sends, nothing cached",
            lambda: cold(WIDEST, WIDEST_TIMES, may_extrapolate=False),
            limit_ms=1000.0,
        ),
        timed("64 x 512, a step, nothing cached", lambda: cold(WIDEST, WIDEST_TIMES), limit_ms=1000.0),
        timed("16 x 8 chunks x 512, a step, shape seen before", lambda: run_pipeline(DEEP, DEEP_TIMES), limit_ms=10.0),
        timed("16 x 8 chunks x 512, a step, nothing cached", lambda: cold(DEEP, DEEP_TIMES)),
        timed(
            "16 x 8 chunks x 512, all 261,120 passes and sends",
            lambda: run_pipeline(DEEP, DEEP_TIMES, may_extrapolate=False),
        ),
    ]


def check(holds: bool, claim: str) -> None:
    """Stop when a case did not do its work."""
    if not holds:
        sys.exit(f"not so: {claim}")


def simpy_makespan_s(shape: ScheduleShape, send_s: float) -> float:
    """1F1B with simpy's processes and events."""
    simpy = import_module("simpy")
    world = simpy.Environment()
    orders = make_schedule(settled(shape)).orders
    arrived = {
        (kind, rank, number): world.event()
        for kind in ("F", "B")
        for rank in range(shape.pp)
        for number in range(shape.num_microbatches)
    }

    def send(links: object, event: object) -> Iterator[object]:
        with links.request() as link:
            yield link
            yield world.timeout(send_s)
        event.succeed()

    def work(rank: int) -> Iterator[object]:
        forward, backward = simpy.Resource(world, 1), simpy.Resource(world, 1)
        for action in orders[rank]:
            number = action.micro_batch
            if action.kind == "forward":
                if rank > 0:
                    yield arrived["F", rank, number]
                yield world.timeout(ONE.forward_s)
                if rank + 1 < shape.pp:
                    world.process(send(forward, arrived["F", rank + 1, number]))
            else:
                if rank + 1 < shape.pp:
                    yield arrived["B", rank, number]
                yield world.timeout(ONE.backward_s)
                if rank > 0:
                    world.process(send(backward, arrived["B", rank - 1, number]))

    for rank in range(shape.pp):
        world.process(work(rank))
    world.run()
    return float(world.now)


def with_simpy() -> Timing:
    """The widest case in simpy, ending when ours does."""
    full = run_pipeline(WIDE, WIDE_TIMES, may_extrapolate=False)
    check(abs(simpy_makespan_s(WIDE, 0.05) / full.makespan_s - 1) < 1e-12, "simpy ends at the same moment")
    return timed("16 x 512 in simpy", lambda: simpy_makespan_s(WIDE, 0.05))


def main() -> int:
    """Print a line per case and compare with its limit."""
    found = timings()
    if find_spec("simpy"):
        found.append(with_simpy())
    for timing in found:
        limit = "" if timing.limit_ms is None else f" (limit {timing.limit_ms:.0f} ms)"
        print(f"{timing.cpu_ms:9.2f} ms  {timing.name}{limit}")
    if "--write" in sys.argv:
        report = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cases": [asdict(one) for one in found],
        }
        RESULTS.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return int(any(timing.limit_ms is not None and timing.cpu_ms > timing.limit_ms for timing in found))


if __name__ == "__main__":
    sys.exit(main())
