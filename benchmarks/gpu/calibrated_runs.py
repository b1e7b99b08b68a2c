"""Train a suite, and lay each run beside its prediction without and with a calibration that saw none of the runs.

    PYTHONPATH=src python -m torch.distributed.run --standalone --nproc-per-node 4 benchmarks/gpu/calibrated_runs.py \
        --calibration calibration.json --out runs.jsonl

One JSON line a run: both predictions (step, memory, exposed communication) and what was measured, the exposed
communication by a profile of one step of rank 0. A run that fails ends the processes; started again, the script goes on
behind it. ``--device cpu --tiny`` tries the logic without a GPU.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from suite_runs import Line, add_suite_options, device_name, join_processes, train_suite, written
from torch.profiler import ProfilerActivity, profile
from train_suites import TrainRun

from shardwise.calibration_file import read_calibration
from shardwise.errors import ShardwiseError
from shardwise.launch.request import TrainRequest, make_job
from shardwise.measure.profile import profile_traces
from shardwise.plan import Plan
from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.predict.calibrated_cluster import calibrated_cluster
from shardwise.prediction import Prediction
from shardwise.train.feed import open_feed
from shardwise.train.job import DataSpec, Job
from shardwise.train.loop import make_trainer, train
from shardwise.train.mesh import make_mesh
from shardwise.train.metrics import StepRecord
from shardwise.train.precision import use_fast_kernels

NUM_PROFILED = 2
WARM_UP_STEPS = 2


@dataclass
class Outside:
    """Device memory outside torch's allocator, of which communicators of earlier runs are no part of this one."""

    device: torch.device
    fresh_bytes: int = 0
    before_bytes: int = 0

    def now_bytes(self) -> int:
        """All of it."""
        if self.device.type != "cuda":
            return 0
        free, total = torch.cuda.mem_get_info()
        return int(total - free - torch.cuda.memory_reserved())

    def begin(self) -> None:
        """A run begins; the first says what a process has before any."""
        self.before_bytes = self.now_bytes()
        self.fresh_bytes = self.fresh_bytes or self.before_bytes

    def of_run_bytes(self) -> int:
        """What a process has that does only this run."""
        return self.fresh_bytes + max(0, self.now_bytes() - self.before_bytes)


def said(prediction: Prediction) -> dict[str, object]:
    """The totals of a prediction."""
    worst = prediction.memory.worst
    parts = {entry.component: entry.duration_s for entry in prediction.time.components}
    return {
        "step_s": prediction.time.step_s,
        "exposed_communication_s": parts["exposed_communication"],
        "components_s": parts,
        "peak_allocated_bytes": worst.peak_allocated_bytes,
        "peak_reserved_bytes": worst.peak_reserved_bytes,
        "device_used_bytes": worst.device_used_bytes,
    }


def predictions(plan: Plan, calibration: Path) -> dict[str, object]:
    """By the catalogue, and as the machine was measured."""
    measured = replace(plan, cluster=calibrated_cluster(plan.cluster, read_calibration(calibration)))
    return {"predicted": said(predict(plan)), "calibrated": said(predict(measured))}


def measure(job: Job, device: torch.device, outside: Outside) -> dict[str, object]:
    """Train a job, the last steps of it under a profiler on rank 0."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    outside.begin()
    started = time.perf_counter()
    mesh = make_mesh(job.layout, device_type=device.type)
    source = open_feed(
        job,
        data_parallel_rank=mesh.data_parallel_rank,
        vocab_size=int(str(job.model_config["vocab_size"])),
        device=device,
    )
    records: list[StepRecord] = []
    profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) if dist.get_rank() == 0 else None
    peaks: list[int] = []

    def after_step(step: int) -> None:
        first = job.num_steps - NUM_PROFILED
        if step == first:
            peaks.extend(_peaks(device))
        if profiler is None:
            return
        if step == first:
            profiler.start()
        elif step == job.num_steps:
            if device.type == "cuda":
                torch.cuda.synchronize()
            profiler.stop()
        elif step > first:
            profiler.step()

    with use_fast_kernels():
        trainer = make_trainer(job, mesh, device=device, source=source)
        train(trainer, on_step=records.append, wants_record=lambda _step: False, after_step=after_step)
    source.close()
    steady = records[WARM_UP_STEPS : job.num_steps - NUM_PROFILED]
    totals = torch.tensor([*peaks, outside.of_run_bytes()], device=device)
    dist.all_reduce(totals, op=dist.ReduceOp.MAX)
    allocated, reserved, outside_bytes = (int(value) for value in totals.tolist())
    return {
        "step_s": median(record.step_s for record in steady),
        "steps_s": [record.step_s for record in records],
        "losses": [record.loss for record in records],
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": reserved,
        "device_used_bytes": reserved + outside_bytes,
        "profile": _profiled(profiler) if profiler is not None and device.type == "cuda" else None,
        "wall_s": time.perf_counter() - started,
    }


def _peaks(device: torch.device) -> tuple[int, int]:
    if device.type != "cuda":
        return (0, 0)
    return (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())


def _profiled(profiler: profile) -> Mapping[str, object]:
    """The split of a profiled step of rank 0."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        try:
            found = profile_traces([path])
        except ShardwiseError as error:  # costs the figures of the trace, not the run
            return {"step_s": 0.0, "error": error.message}
    split = found.split
    return {
        "step_s": split.step_s,
        "compute_s": split.compute_s,
        "exposed_communication_s": split.exposed_communication_s,
        "communication_s": split.communication_s,
        "host_s": split.host_s,
        "idle_s": split.idle_s,
        "collectives": [
            {
                "kind": one.kind,
                "axis": one.axis,
                "calls": one.num_calls,
                "work_s": one.work_s,
                "exposed_s": one.exposed_s,
            }
            for one in found.collectives
        ],
        "kernels": [
            {"family": kernel.family, "kernels": kernel.num_kernels, "duration_s": kernel.duration_s}
            for kernel in found.kernels
        ],
    }


def run_one(run: TrainRun, arguments: argparse.Namespace, outside: Outside) -> bool:
    """Predict and measure one run; False when it failed and the processes have to end."""

    def fill(line: Line) -> None:
        document = run.plan(gpu=arguments.gpu, world_size=dist.get_world_size(), is_tiny=arguments.tiny)
        plan = read_plan(document)
        line["plan"] = document
        line.update(predictions(plan, arguments.calibration))
        request = TrainRequest(num_steps=run.num_steps, device=arguments.device, data=DataSpec(source="synthetic"))
        folder = tempfile.mkdtemp(prefix="shardwise-run-")
        job = make_job(plan, request, prediction=None, run_folder=folder)
        line["measured"] = measure(job, outside.device, outside)

    line: Line = {"name": run.name, "device": device_name(outside.device)}
    is_measured = written(line, arguments.out, fill)
    if is_measured and dist.get_rank() == 0:
        _say(line)
    return is_measured


def _say(line: Line) -> None:
    measured, before, after = (line[name] for name in ("measured", "predicted", "calibrated"))
    step_s = measured["step_s"]  # type: ignore[index]
    print(
        f"{line['name']!s:38} {1e3 * step_s:8.1f} ms  "
        f"catalogue {before['step_s'] / step_s - 1:+6.1%}  calibrated {after['step_s'] / step_s - 1:+6.1%}  "  # type: ignore[index]
        f"{measured['wall_s']:.0f} s",  # type: ignore[index]
        flush=True,
    )


def main() -> int:
    """Every run of the suite that is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", type=Path, required=True)
    add_suite_options(parser, default="calibrated")
    arguments = parser.parse_args()
    outside = Outside(device=join_processes(arguments))
    train_suite(arguments, outside.device, lambda run: run_one(run, arguments, outside))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
