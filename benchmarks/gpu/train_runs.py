"""Train many configurations in one set of processes and write one JSON line for each.

    PYTHONPATH=src python -m torch.distributed.run --standalone --nproc-per-node 4 benchmarks/gpu/train_runs.py \
        --suite smoke --out results.jsonl

A configuration that fails is written with its error and ends the processes, because the other ranks may wait in a
collective; started again with the same ``--out``, the script goes on behind it. ``--device cpu --tiny`` tries the logic
without a GPU.
"""

import argparse
import json
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from memory_trace import peak_composition
from suite_runs import Line, add_suite_options, device_name, join_processes, train_suite, written
from train_suites import TrainRun

from shardwise.launch.request import TrainRequest, make_job
from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.rules import find_refusals
from shardwise.train.gradients import StepSums
from shardwise.train.job import CheckpointSpec, DataSpec, Job, OptimizerSpec, WatchSpec
from shardwise.train.loop import Trainer
from shardwise.train.worker import run_job

WARM_UP_STEPS = 200
"""Of the learning rate, torchtitan's default: without one the loss of fresh weights jumps at the second step."""
LOOKED_AT = (11, 13)
"""Steps, counted from 0, that ``--look`` profiles and replays; the median leaves them out."""


@dataclass
class Measured:
    """What one configuration did."""

    losses: list[float] = field(default_factory=list)
    step_s: float = 0.0
    first_step_s: float = 0.0
    tokens_per_s_per_gpu: float = 0.0
    mfu_fraction: float | None = None
    peak_allocated_bytes: int = 0
    peak_reserved_bytes: int = 0
    peaks_by_step: list[int] = field(default_factory=list)
    """Allocated bytes at the peak of each step of rank 0; the first step compiles."""
    wall_s: float = 0.0


def job_of(run: TrainRun, arguments: argparse.Namespace) -> tuple[Job, dict[str, object]]:
    """The job, and what the planner says about it."""
    document = run.plan(gpu=arguments.gpu, world_size=dist.get_world_size(), is_tiny=arguments.tiny)
    plan = read_plan(document)
    prediction = predict(plan)
    request = TrainRequest(
        num_steps=arguments.steps or run.num_steps,
        device=arguments.device,
        tuning=run.tuning,
        checkpoint=CheckpointSpec(accepts_random_weights=True),  # speed and memory are what is looked at
        data=documents() if run.masks_documents else DataSpec(source="synthetic"),
        optimizer=OptimizerSpec(num_warmup_steps=WARM_UP_STEPS),
        watch=WatchSpec(),
    )
    job = make_job(plan, request, prediction=prediction, run_folder=tempfile.mkdtemp(prefix="shardwise-run-"))
    said = {
        "step_s": prediction.time.step_s,
        "peak_allocated_bytes": prediction.memory.worst.peak_allocated_bytes,
        "refusals": [refusal.message for refusal in find_refusals(plan)],
    }
    return job, {"plan": document, "predicted": said}


def documents() -> DataSpec:
    """Documents of 100 to 3,000 bytes in a file of this machine; every rank writes the same."""
    path = Path(tempfile.gettempdir()) / f"shardwise-documents-{dist.get_rank()}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(4000):
            file.write(json.dumps({"text": f"{number} " * (20 + number * 7919 % 580)}) + "\n")
    return DataSpec(source=str(path), crosses_documents=False)


def measure(job: Job, device: torch.device) -> Measured:
    """Train a job and read its records."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    trainer, records = run_job(job, device=device)
    del trainer
    steady = records[3:] or records
    step_s = median(record.step_s for record in steady)
    peaks = torch.tensor(
        [max(r.peak_allocated_bytes for r in records), max(r.peak_reserved_bytes for r in records)], device=device
    )
    dist.all_reduce(peaks, op=dist.ReduceOp.MAX)
    return Measured(
        losses=[record.loss for record in records],
        step_s=step_s,
        first_step_s=records[0].step_s,
        tokens_per_s_per_gpu=job.tokens_per_step / step_s / job.layout.world_size,
        mfu_fraction=median(record.mfu_fraction or 0.0 for record in steady),
        peak_allocated_bytes=int(peaks[0]),
        peak_reserved_bytes=int(peaks[1]),
        peaks_by_step=[record.peak_allocated_bytes for record in records],
        wall_s=time.perf_counter() - started,
    )


def look_into(name: str, folder: Path) -> None:
    """From now on rank 0 profiles one step of every configuration and replays the allocations of the next."""
    plain = Trainer.step

    def step(trainer: Trainer) -> StepSums:
        if dist.get_rank() or trainer.progress.step not in LOOKED_AT:
            return plain(trainer)
        if trainer.progress.step == LOOKED_AT[1]:
            kept: list[StepSums] = []
            said = peak_composition(lambda: kept.append(plain(trainer)), trainer.device)
            (folder / f"{name}-peak.json").write_text(json.dumps(said), encoding="utf-8")
            return kept[0]
        torch.cuda.synchronize()
        with torch.profiler.profile() as profiler:
            sums = plain(trainer)
            torch.cuda.synchronize()
        table = profiler.key_averages().table(sort_by="self_cuda_time_total", row_limit=60, max_name_column_width=90)
        (folder / f"{name}-kernels.txt").write_text(table, encoding="utf-8")
        profiler.export_chrome_trace(str(folder / f"{name}-trace.json.gz"))
        return sums

    Trainer.step = step  # type: ignore[method-assign]


def run_one(run: TrainRun, arguments: argparse.Namespace, device: torch.device) -> bool:
    """Measure one configuration; False when it failed and the processes have to end."""

    def fill(line: Line) -> None:
        job, said = job_of(run, arguments)
        line.update(said)
        line["measured"] = asdict(measure(job, device))

    if arguments.look and run.name in arguments.look.split(","):
        look_into(run.name.replace(" ", "-"), arguments.out.parent)
    line: Line = {"name": run.name, "tuning": asdict(run.tuning), "device": device_name(device)}
    if arguments.ranks_imagined:
        line["ranks_imagined"] = arguments.ranks_imagined
    is_measured = written(line, arguments.out, fill)
    if is_measured and dist.get_rank() == 0:
        measured = line["measured"]
        print(
            f"{run.name:40s} {measured['tokens_per_s_per_gpu']:9.0f} tokens/s/GPU "  # type: ignore[index]
            f"{measured['peak_allocated_bytes'] / 2**30:6.2f} GiB  loss {measured['losses'][-1]:.4f} "  # type: ignore[index]
            f"{measured['wall_s']:.1f} s",  # type: ignore[index]
            flush=True,
        )
    return is_measured


def main() -> int:
    """Measure every configuration of the suite that is not in the file yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_suite_options(parser, default="smoke")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--look", help="names whose steps are profiled; the last of a call, for it changes the others")
    arguments = parser.parse_args()
    device = join_processes(arguments)
    train_suite(arguments, device, lambda run: run_one(run, arguments, device))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
