"""Power, clock and kernels of training steps on one GPU, with weights that learn and with weights that stay.

    PYTHONPATH=src torchrun --standalone --nproc-per-node 1 benchmarks/gpu/step_power.py --out FILE

One JSON line a run: the median step, mean watts and megahertz of the board, and milliseconds of a step by the family of
its kernels, with the count and the mean of every kernel of products.
"""

import argparse
import gc
import json
import tempfile
import time
from pathlib import Path
from statistics import mean, median

import torch
import torch.distributed as dist
from kernel_costs import Board
from suite_runs import join_processes
from torch.profiler import ProfilerActivity, profile
from train_suites import TrainRun

from shardwise.launch.request import TrainRequest, make_job
from shardwise.measure.kernel_names import kernel_family
from shardwise.plan_file import read_plan
from shardwise.train.feed import open_feed
from shardwise.train.job import DataSpec, OptimizerSpec
from shardwise.train.loop import make_trainer, train
from shardwise.train.mesh import make_mesh
from shardwise.train.metrics import StepRecord
from shardwise.train.precision import use_fast_kernels

NUM_PROFILED = 2
WARM_UP_STEPS = 3
FULL = {"recompute": "full", "compile": True}
RUNS = (
    TrainRun("8b full", "8b", recipe=FULL, num_steps=24),
    TrainRun("3b full", "3b", recipe={"seq_len": 8192, "micro_batch_size": 2, **FULL}, num_steps=16),
    TrainRun("1b none", "1b", recipe={"micro_batch_size": 2, "recompute": "none", "compile": True}, num_steps=50),
)
LEARNING_RATES = (3e-4, 1e-9)
"""A rate at which a few steps change what flows through a model, and one that leaves it as it began."""


def measured(run: TrainRun, learning_rate: float, board: Board, device: torch.device) -> dict[str, object]:
    """Train one configuration on synthetic tokens, its last steps under a profiler."""
    plan = read_plan(run.plan(gpu="h200-sxm", world_size=1, is_tiny=False))
    request = TrainRequest(
        num_steps=run.num_steps,
        device="cuda",
        data=DataSpec(source="synthetic"),
        optimizer=OptimizerSpec(learning_rate=learning_rate),
    )
    job = make_job(plan, request, prediction=None, run_folder=tempfile.mkdtemp())
    words = int(str(job.model_config["vocab_size"]))
    source = open_feed(job, data_parallel_rank=0, vocab_size=words, device=device)
    records: list[StepRecord] = []
    ends: list[float] = []
    profiler = profile(activities=[ProfilerActivity.CUDA])

    def after_step(step: int) -> None:
        torch.cuda.synchronize()
        ends.append(time.perf_counter())
        if step == job.num_steps - NUM_PROFILED:
            profiler.start()
        elif step == job.num_steps:
            profiler.stop()

    with use_fast_kernels():
        trainer = make_trainer(job, make_mesh(job.layout, device_type="cuda"), device=device, source=source)
        train(trainer, on_step=records.append, wants_record=lambda _step: False, after_step=after_step)
    source.close()
    watts, megahertz = board.between(ends[WARM_UP_STEPS], ends[-NUM_PROFILED - 1])
    steady = records[WARM_UP_STEPS:-NUM_PROFILED]
    return {
        "name": run.name,
        "learning_rate": learning_rate,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "step_ms": round(1e3 * median(record.step_s for record in steady), 1),
        "watts": round(watts, 1),
        "megahertz": round(megahertz, 1),
        **kernels_of(profiler),
        "losses": [round(record.loss, 3) for record in records],
    }


def kernels_of(profiler: profile) -> dict[str, object]:
    """Milliseconds of a step by family, and each kernel of products: its number in all profiled steps and its mean."""
    families: dict[str, float] = {}
    products: dict[str, list[float]] = {}
    for event in profiler.events() or ():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            family = kernel_family(event.name)
            families[family] = families.get(family, 0.0) + event.device_time / 1e3 / NUM_PROFILED
            if family == "gemm":
                products.setdefault(event.name[:60], []).append(event.device_time)
    return {
        "families_ms": {name: round(total, 2) for name, total in families.items()},
        "products_us": {name: [len(times), round(mean(times), 1)] for name, times in products.items()},
    }


def main() -> None:
    """Every run at both learning rates."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    device = join_processes(argparse.Namespace(device="cuda", ranks_imagined=0))
    out: Path = parser.parse_args().out
    board = Board()
    with out.open("a", encoding="utf-8") as file:
        for run in RUNS:
            for learning_rate in LEARNING_RATES:
                line = json.dumps(measured(run, learning_rate, board, device))
                print(line[:200], flush=True)
                file.write(line + "\n")
                gc.collect()
                torch.cuda.empty_cache()
                torch._dynamo.reset()
    board.process.terminate()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
