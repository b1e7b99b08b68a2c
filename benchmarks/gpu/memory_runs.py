"""Measures the memory and time of real training steps, one JSON line per run.

One GPU:   python3 benchmarks/gpu/memory_runs.py --family single --out single.jsonl
Two GPUs:  torchrun --standalone --nproc-per-node 2 benchmarks/gpu/memory_runs.py --family fsdp2 --out fsdp2.jsonl
No GPU:    add ``--tiny`` to try the logic (gloo, no memory figures).

A run whose name is already in the output file is skipped, so a killed family can be started again.
"""

import argparse
import datetime
import json
import os
import statistics
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from memory_build import Built, build, build_stage, device_of_rank
from memory_configs import MemoryRun, implementation_of, plan_of, runs_of
from memory_meter import (
    StepRecorder,
    allocated_bytes,
    clean,
    device_used_bytes,
    drop_cache,
    largest,
    outside_allocator_bytes,
    reserved_bytes,
)
from memory_trace import peak_composition
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

SCHEMA = "shardwise.gpu-memory-run/1"


class BlockMeter:
    """What each block's forward leaves allocated: the difference between its exit and its entry."""

    def __init__(self, built: Built, device: torch.device) -> None:
        self.device = device
        self.left_bytes: list[int] = []
        self._entered: list[int] = []
        self._handles = [block.register_forward_pre_hook(self._enter) for block in built.blocks]
        self._handles += [block.register_forward_hook(self._leave) for block in built.blocks]

    def _enter(self, *_: object) -> None:
        self._entered.append(allocated_bytes(self.device))

    def _leave(self, *_: object) -> None:
        self.left_bytes.append(allocated_bytes(self.device) - self._entered.pop())

    def remove(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()


def _sync_gradients(built: Built, *, is_last: bool) -> None:
    if isinstance(built.model, DistributedDataParallel):
        built.model.require_backward_grad_sync = is_last


def _step(built: Built, run: MemoryRun, batches: list[tuple[Tensor, Tensor]], recorder: StepRecorder) -> float:
    recorder.start()
    for index, (tokens, labels) in enumerate(batches):
        _sync_gradients(built, is_last=index == len(batches) - 1)
        with built.autocast():
            logits = built.forward(tokens)
        recorder.mark("forward")
        with built.around_loss():
            with built.autocast():
                loss = built.loss(logits, labels) / len(batches)
            del logits
            recorder.mark("loss")
            loss.backward()
        recorder.mark("backward")
    _update(built, run, recorder)
    return float(loss.detach())


def _pipeline_step(
    built: Built, schedule: object, run: MemoryRun, batches: list[tuple[Tensor, Tensor]], recorder: StepRecorder
) -> float:
    recorder.start()
    losses: list[Tensor] = []
    tokens = torch.cat([batch[0] for batch in batches]).contiguous()
    labels = torch.cat([batch[1] for batch in batches]).contiguous()
    with built.autocast():
        if dist.get_rank() == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=labels, losses=losses)
    recorder.mark("pipeline")
    _update(built, run, recorder)
    return float(torch.stack(losses).detach().mean()) if losses else 0.0


def _update(built: Built, run: MemoryRun, recorder: StepRecorder) -> None:
    if run.clip:
        torch.nn.utils.clip_grad_norm_(built.model.parameters(), 1.0, foreach=True)
        recorder.mark("clip")
    built.optimizer.step()
    recorder.mark("optimizer")
    built.optimizer.zero_grad(set_to_none=True)
    recorder.mark("zero_grad")
    recorder.finish()


def _batches(run: MemoryRun, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    shape = (run.micro_batch_size, run.seq_len)
    generator = torch.Generator().manual_seed(7)
    return [
        tuple(torch.randint(run.vocab_size, shape, generator=generator).to(device) for _ in range(2))
        for _ in range(run.num_microbatches)
    ]


def _state_bytes(built: Built) -> dict[str, int]:
    def local(tensor: Tensor) -> int:
        shard = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        return shard.numel() * shard.element_size() if shard.device.type != "cpu" else 0

    states = [value for state in built.optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    return {
        "parameters_bytes": sum(local(p) for p in built.model.parameters()),
        "trainable_parameters_bytes": sum(local(p) for p in built.model.parameters() if p.requires_grad),
        "buffers_bytes": sum(local(b) for b in built.model.buffers()),
        "optimizer_bytes": sum(local(value) for value in states),
    }


def _steps(run: MemoryRun, device: torch.device, num_steps: int) -> tuple[Built, list[dict[str, object]], BlockMeter]:
    built, schedule = build_stage(run, device) if run.kind == "pp" else (build(run, device), None)
    batches = _batches(run, device)
    drop_cache(device)
    meter = BlockMeter(built, device)
    steps: list[dict[str, object]] = []
    for _ in range(num_steps):
        meter.left_bytes.clear()
        recorder = StepRecorder(device)
        if schedule is None:
            loss = _step(built, run, batches, recorder)
        else:
            loss = _pipeline_step(built, schedule, run, batches, recorder)
        steps.append({"loss": loss, **recorder.as_record()})
    return built, steps, meter


def measure(run: MemoryRun, device: torch.device, num_steps: int) -> dict[str, object]:
    """Train a few steps and report the steady state (the last step; step 3 onwards is steady)."""
    clean(device)
    before = outside_allocator_bytes(device)
    allocated_before = allocated_bytes(device)
    built, steps, meter = _steps(run, device, num_steps)
    last = steps[-1]
    result: dict[str, object] = {
        "steady": {
            "peak_allocated_bytes": largest(last, "peak_allocated_bytes"),
            "peak_requested_bytes": largest(last, "peak_requested_bytes"),
            "peak_reserved_bytes": largest(last, "peak_reserved_bytes"),
            "rest_allocated_bytes": allocated_bytes(device),
            "rest_reserved_bytes": reserved_bytes(device),
            "device_used_bytes": device_used_bytes(device),
            "outside_allocator_bytes": outside_allocator_bytes(device),
            "step_s": statistics.median(step["wall_s"] for step in steps[2:]),
        },
        "states": _state_bytes(built),
        "block_forward_left_bytes": meter.left_bytes[: len(built.blocks)],
        "outside_allocator_before_bytes": before,
        "allocated_before_bytes": allocated_before,
        "steps": steps,
    }
    meter.remove()
    if device.type == "cuda":
        stats = torch.cuda.memory_stats(device)
        result["num_alloc_retries"] = stats["num_alloc_retries"]
    return result


def environment(device: torch.device) -> dict[str, object]:
    """Where the figures come from."""
    record: dict[str, object] = {
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": "cpu",
        "alloc_conf": os.environ.get("PYTORCH_ALLOC_CONF", ""),
    }
    if device.type == "cuda":
        record |= {
            "device": torch.cuda.get_device_name(device),
            "total_bytes": torch.cuda.mem_get_info(device)[1],
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return record


def _gather(record: dict[str, object]) -> list[dict[str, object]]:
    if not dist.is_initialized():
        return [record]
    records: list[dict[str, object]] = [{}] * dist.get_world_size()
    dist.all_gather_object(records, record)
    return records


def _measure_one(run: MemoryRun, device: torch.device, args: argparse.Namespace) -> dict[str, object]:
    record = measure(run, device, args.steps)
    clean(device)
    if run.trace and device.type == "cuda" and not args.no_trace:
        record["peak_composition"] = peak_composition(lambda: _steps(run, device, 2), device)
        clean(device)
    return record


def _is_main() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _done(path: Path) -> set[str]:
    return {json.loads(line)["name"] for line in path.read_text().splitlines()} if path.exists() else set()


def _append(path: Path, record: dict[str, object]) -> None:
    if _is_main():
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")


def _line(run: MemoryRun, device: torch.device, gpu: str) -> dict[str, object]:
    world_size = dist.get_world_size() if dist.is_initialized() else 1
    return {
        "schema": SCHEMA,
        "name": run.name,
        "plan": plan_of(run, gpu=gpu, world_size=world_size),
        "implementation": implementation_of(run),
        "environment": environment(device),
    }


def _run_family(args: argparse.Namespace, device: torch.device) -> None:
    out = Path(args.out)
    done = _done(out)
    if dist.is_initialized():
        dist.barrier()
    runs = [(family, run) for family in args.family.split(",") for run in runs_of(family, tiny=args.tiny)]
    for order, (family, run) in enumerate(runs):
        if run.name in done:
            continue
        late = torch.tensor(float(time.time() > args.deadline), device=device)
        if dist.is_initialized():
            dist.all_reduce(late)
        if late > 0:
            break
        run_started_s = time.perf_counter()
        line = _line(run, device, args.gpu) | {"family": family, "order_in_process": order}
        try:
            line["ranks"] = _gather(_measure_one(run, device, args))
        except Exception as error:  # noqa: BLE001  (recorded; a broken run must not stop the others)
            text = "".join(traceback.format_exception(error)[-3:])[-1500:]
            _append(out, line | {"error": text})
            if _is_main():
                print(f"{run.name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            del error
            if dist.is_initialized():
                os._exit(3)  # the other ranks may wait in a collective; the next start skips this run
            continue
        _append(out, line)
        _print(run, line, time.perf_counter() - run_started_s)


def _print(run: MemoryRun, line: dict[str, object], wall_s: float) -> None:
    if not _is_main():
        return
    steady = line["ranks"][0]["steady"]
    gib = {key: round(value / 2**30, 2) for key, value in steady.items() if key.endswith("_bytes")}
    print(
        f"{run.name:34s} alloc {gib['peak_allocated_bytes']:6.2f} reserved {gib['peak_reserved_bytes']:6.2f} "
        f"rest {gib['rest_allocated_bytes']:6.2f} outside {gib['outside_allocator_bytes']:5.2f} GiB "
        f"step {steady['step_s']:.3f} s  ({wall_s:.1f} s)",
        flush=True,
    )


def main() -> None:
    """Parse the command line and measure one family."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", required=True, help="one or more of FAMILIES, with commas between")
    parser.add_argument("--out", required=True)
    parser.add_argument("--gpu", default="", help="catalogue id for the plans; by default from the device's name")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--deadline", type=float, default=float("inf"), help="start no run after this Unix time")
    parser.add_argument("--no-trace", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="shrink every run; for trying the logic")
    args = parser.parse_args()
    device = device_of_rank()
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.backends.cuda.matmul.allow_tf32 = True
    args.gpu = args.gpu or ("h200-sxm" if "H200" in str(environment(device)["device"]) else "h100-sxm")
    if "RANK" in os.environ:
        backend = "nccl" if device.type == "cuda" else "gloo"
        options = {"device_id": device} if device.type == "cuda" else {}
        dist.init_process_group(backend, timeout=datetime.timedelta(seconds=90), **options)
    _run_family(args, device)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
