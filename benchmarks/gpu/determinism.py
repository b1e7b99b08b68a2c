"""Train Llama-3.2-1B for a few steps; write losses, gradient norms and a checksum of all weights as one JSON line.

    PYTHONPATH=src python benchmarks/gpu/determinism.py --mode deterministic --out results.jsonl

Run it twice in either mode, then compare with ``--compare results.jsonl``. Weights are compared as the optimizer holds
them, in fp32: an export is rounded from these, so equal weights are equal exports. ``--tiny`` tries the logic on
CPUs.
"""

import argparse
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from shardwise.launch.command import job_environment
from shardwise.launch.request import TrainRequest, make_job
from shardwise.plan_file import read_plan
from shardwise.train.job import Job, OptimizerSpec, WatchSpec

MODES = ("deterministic", "plain")
WARM_UP_STEPS = 3
Line = dict[str, object]
TINY = {
    "model_type": "llama",
    "num_key_value_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 256,
}


def job_of(arguments: argparse.Namespace) -> Job:
    """Two micro-batches of two sequences of 4,096 tokens; the tiny one has 64."""
    recipe = {"seq_len": 4096, "micro_batch_size": 2, "global_batch_size": 4, "precision": "bf16-mixed"}
    document: Line = {"model": "llama-3.2-1b", "cluster": f"1x{arguments.gpu}", "recipe": recipe}
    recipe["compile"] = arguments.compile
    if arguments.tiny:
        recipe.update(seq_len=64)
        document["model"] = TINY
    request = TrainRequest(
        num_steps=arguments.steps,
        is_deterministic=arguments.mode == "deterministic",
        device="cpu" if arguments.tiny else "cuda",
        optimizer=OptimizerSpec(num_warmup_steps=10),
        watch=WatchSpec(),
    )
    folder = tempfile.mkdtemp(prefix="shardwise-run-")
    return make_job(read_plan(document), request, prediction=None, run_folder=folder)


def train_once(arguments: argparse.Namespace) -> Line:
    """One run in this process, under the environment that the launcher would give it."""
    job = job_of(arguments)
    os.environ.update(job_environment(job, inherited=os.environ))
    import torch
    import torch.distributed as dist

    from shardwise.train.parameters import local_part
    from shardwise.train.worker import run_job

    start_s, device = time.time(), torch.device("cpu" if arguments.tiny else "cuda:0")
    rendezvous = f"file://{tempfile.mkdtemp()}/rendezvous"
    dist.init_process_group("gloo" if arguments.tiny else "cpu:gloo,cuda:nccl", rendezvous, rank=0, world_size=1)
    trainer, records = run_job(job, device=device)
    weights = hashlib.blake2b()
    for entry in trainer.trained:
        weights.update(memoryview(local_part(entry.parameter).cpu().view(torch.uint8).numpy()).cast("B"))
    peak_bytes = max(record.peak_allocated_bytes for record in records)
    dist.destroy_process_group()
    return {
        "mode": arguments.mode,
        "device": torch.cuda.get_device_name(0) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "losses": [record.loss.hex() for record in records],
        "gradient_norms": [record.gradient_norm.hex() for record in records],
        "weights": weights.hexdigest(),
        "step_s": median(record.step_s for record in records[WARM_UP_STEPS:]),
        "first_step_s": records[0].step_s,
        "peak_allocated_bytes": peak_bytes,
        "wall_s": time.time() - start_s,
        "num_steps": job.num_steps,
        "compile": job.recipe.compile,
    }


def compare(lines: list[Mapping[str, object]]) -> None:
    """Say per mode what two runs have in common, and what the deterministic one costs."""
    seconds: dict[str, float] = {}
    for mode in MODES:
        runs = [line for line in lines if line["mode"] == mode]
        if len(runs) < 2:
            print(f"{mode}: {len(runs)} of 2 runs ended")
            continue
        first, second = runs[:2]
        seconds[mode] = min(float(str(run["step_s"])) for run in runs)
        for name in ("losses", "gradient_norms"):
            print(f"{mode}: {name} {_difference(first[name], second[name])}")
        print(f"{mode}: weights {'equal' if first['weights'] == second['weights'] else 'DIFFER'}")
        peak = max(int(str(run["peak_allocated_bytes"])) for run in runs) / 2**30
        print(f"{mode}: step {seconds[mode] * 1000:.1f} ms, peak {peak:.2f} GiB")
    if len(seconds) == len(MODES):
        print(f"--deterministic costs {seconds['deterministic'] / seconds['plain'] - 1:+.1%} of a step")


def _difference(first: object, second: object) -> str:
    pairs = list(zip(first, second, strict=True))  # type: ignore[call-overload]
    at = next((index for index, (one, other) in enumerate(pairs) if one != other), None)
    if at is None:
        return f"equal bit for bit in {len(pairs)} steps"
    one, other = (float.fromhex(value) for value in pairs[at])
    return f"DIFFER from step {at + 1} on: {one!r} and {other!r}"


def main() -> None:
    """Run once, or compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="deterministic")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--gpu", default="h200-sxm")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-compile", action="store_false", dest="compile")
    arguments = parser.parse_args()
    if arguments.compare is not None:
        compare([json.loads(line) for line in arguments.compare.read_text(encoding="utf-8").splitlines()])
        return
    line = train_once(arguments)
    with arguments.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
