"""The measurement of a run: the ledger's components, as far as this process can see them."""

import platform
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor

from shardwise.train.loop import Trainer
from shardwise.train.metrics import StepRecord
from shardwise.train.parameters import local_part, nbytes

MEASUREMENT_SCHEMA = "shardwise.measurement/1"
WARM_UP_STEPS = 3
"""The first steps compile, allocate and connect; medians leave them out when enough steps remain."""


def measurement_object(trainer: Trainer, records: list[StepRecord]) -> dict[str, object]:
    """The measurement of the worst rank, on every rank; a collective call."""
    job = trainer.job
    steady = records[WARM_UP_STEPS:] if len(records) > WARM_UP_STEPS else records
    step_s = median(record.step_s for record in steady) if steady else None
    per_gpu = job.tokens_per_step / step_s / job.layout.world_size if step_s else None
    return {
        "schema": MEASUREMENT_SCHEMA,
        "memory": _memory(trainer),
        "time": {
            "step_s": step_s,
            "num_steps_measured": len(steady),
            "first_step_s": records[0].step_s if records else None,
        },
        "throughput": {
            "tokens_per_s": per_gpu * job.layout.world_size if per_gpu else None,
            "tokens_per_s_per_gpu": per_gpu,
            "mfu_fraction": per_gpu * job.model_flop_per_token / job.peak_flop_per_s
            if per_gpu and job.peak_flop_per_s
            else None,
            "mfu_convention": job.mfu_convention,
        },
        "loss": {"first": records[0].loss if records else None, "last": records[-1].loss if records else None},
        "environment": environment(trainer.device),
        "steps": [{"step": r.step, "loss": r.loss, "step_s": r.step_s} for r in records],
    }


def environment(device: torch.device) -> dict[str, object]:
    """What this ran on."""
    is_cuda = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(device) if is_cuda else platform.processor() or platform.machine(),
        "world_size": dist.get_world_size(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if is_cuda else None,
        "python": platform.python_version(),
    }


def held_bytes(trainer: Trainer) -> dict[str, int]:
    """What this rank holds now, by component of the ledger, and ``allocated`` where an allocator counts.

    Asked when memory has run out, so it allocates nothing on the device.
    """
    gradients = [entry.parameter.grad for entry in trainer.trained if entry.parameter.grad is not None]
    held = {
        "parameters": nbytes([entry.local for entry in trainer.trained]),
        "gradients": nbytes([local_part(gradient) for gradient in gradients]),
        "optimizer": nbytes(_moments(trainer)),
    }
    if trainer.device.type == "cuda":
        held["allocated"] = torch.cuda.memory_allocated()
    return held


def _moments(trainer: Trainer) -> list[Tensor]:
    states = trainer.optimizer.state.values()
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]


def _memory(trainer: Trainer) -> dict[str, object]:
    """Bytes of the worst rank."""
    parameters = nbytes([entry.local for entry in trainer.trained])
    optimizer = nbytes(_moments(trainer))
    is_cuda = trainer.device.type == "cuda"
    values = torch.tensor(
        [
            parameters,
            optimizer,
            torch.cuda.max_memory_allocated() if is_cuda else 0,
            torch.cuda.max_memory_reserved() if is_cuda else 0,
        ],
        dtype=torch.int64,
        device=trainer.device,
    )
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    parameters, optimizer, allocated, reserved = (int(value) for value in values.tolist())
    return {
        "peak_allocated_bytes": allocated if is_cuda else None,
        "peak_reserved_bytes": reserved if is_cuda else None,
        "components_bytes": {"parameters": parameters, "optimizer": optimizer},
    }
