"""The measurement of a run: the ledger's components, as far as this process can see them."""

import platform
from collections.abc import Iterable
from functools import partial
from statistics import median

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from shardwise.ledger import MemoryComponent
from shardwise.measure.step_sample import mean_sample
from shardwise.train.beginning import beginning
from shardwise.train.loop import Trainer
from shardwise.train.metrics import StepRecord, finite_only
from shardwise.train.parameters import held_parameters, local_part, nbytes
from shardwise.train.sampling import Looking, Sampler, sample_object
from shardwise.train.validation import perplexity

MEASUREMENT_SCHEMA = "shardwise.measurement/1"
WARM_UP_STEPS = 3
"""The first steps compile, allocate and connect; medians leave them out when enough steps remain."""
STATES_METHOD = "tensors of states counted"
METHODS = {
    "cpu": "allocations of one step as torch's profiler records them, on top of the states' tensors, counted",
    "cuda": "allocations of one step as torch's profiler records them, from what the caching allocator held before",
}


def measurement_object(trainer: Trainer, records: list[StepRecord]) -> dict[str, object]:
    """The measurement of the worst rank, on every rank; a collective call."""
    job = trainer.job
    steady = steady_records(records)
    step_s = median(record.step_s for record in steady) if steady else None
    per_gpu = job.tokens_per_step / step_s / job.layout.world_size if step_s else None
    return {
        "schema": MEASUREMENT_SCHEMA,
        "inputs": beginning(job),
        "memory": _memory(trainer),
        "time": {
            "step_s": step_s,
            "num_steps_measured": len(steady),
            "samples": [sample_object(sample) for sample in trainer.sampler.samples] if trainer.sampler else [],
            "first_step_s": records[0].step_s if records else None,
            **_sampled_parts(trainer),
        },
        "throughput": {
            "tokens_per_s": per_gpu * job.layout.world_size if per_gpu else None,
            "tokens_per_s_per_gpu": per_gpu,
            "mfu_fraction": per_gpu * job.model_flop_per_token / job.peak_flop_per_s
            if per_gpu and job.peak_flop_per_s
            else None,
            "mfu_convention": job.mfu_convention,
        },
        "loss": finite_only(
            {"first": records[0].loss if records else None, "last": records[-1].loss if records else None}
        ),
        "loss_scale": _loss_scale(trainer),
        "validation": _validation(trainer),
        "environment": environment(trainer.device),
        "steps": [finite_only({"step": r.step, "loss": r.loss, "step_s": r.step_s}) for r in records],
    }


def _loss_scale(trainer: Trainer) -> dict[str, object] | None:
    """The loss scale of fp16 and its skipped steps; other precisions scale nothing."""
    scale = trainer.scale
    if not scale.is_active:
        return None
    return {
        "ratio": scale.ratio,
        "num_skipped_steps": scale.num_skipped_steps,
        "num_steps": trainer.progress.step,
    }


def _validation(trainer: Trainer) -> dict[str, object] | None:
    """What the validations showed, and whether the run ended because they brought nothing more."""
    validator = trainer.validator
    if validator is None:
        return None
    state = validator.state
    found = {
        "first_loss": state.first_loss,
        "last_loss": state.last_loss,
        "best_loss": state.best_loss,
        "best_perplexity": perplexity(state.best_loss),
    }
    return {
        **finite_only(found),
        "best_step": state.best_step,
        "num_validations": state.num_validations,
        "ended_early": validator.is_patience_over and trainer.progress.step < trainer.job.num_steps,
    }


def steady_records(records: list[StepRecord]) -> list[StepRecord]:
    """Steps after the warm-up that no profiler recorded; in a short run the last one that is not the first.

    A profiler makes a step slower, but the first one may compile, which takes a hundred times as long.
    """
    usual = [record for record in records[WARM_UP_STEPS:] if not record.is_sampled]
    return usual or [record for record in records[1:] if not record.is_sampled][-1:] or records[-1:]


def _sampled_parts(trainer: Trainer) -> dict[str, object]:
    """Times of the mean sampled step, by the ledger's names."""
    samples = trainer.sampler.samples if trainer.sampler else []
    if not samples:
        return {}
    mean = sample_object(mean_sample(samples))
    return {"components_s": mean["components_s"], "communication": mean["communication"]}


def environment(device: torch.device) -> dict[str, object]:
    """The machine, device and versions that the run ran on."""
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
    """Bytes this rank holds now by component of the ledger, and ``allocated`` where an allocator counts.

    Asked when memory has run out, so it allocates nothing on the device.
    """
    gradients = [entry.parameter.grad for entry in trainer.trained if entry.parameter.grad is not None]
    held = {
        "parameters": nbytes(_parameters(trainer)),
        "gradients": nbytes([local_part(gradient) for gradient in gradients]),
        "optimizer": nbytes(_moments(trainer)),
    }
    if trainer.device.type == "cuda":
        held["allocated"] = torch.cuda.memory_allocated()
    return held


def _parameters(trainer: Trainer) -> list[Tensor]:
    """This rank's parts of all parameters, with what rounding took off them."""
    return [*held_parameters(list(trainer.built.decoders)), *trainer.built.halves.tensors()]


def _moments(trainer: Trainer) -> list[Tensor]:
    states = trainer.optimizer.state.values()
    return [value for state in states for value in state.values() if isinstance(value, Tensor)]


def states_held(trainer: Trainer) -> dict[MemoryComponent, int]:
    """Bytes this rank's device keeps from step to step by component, counted over tensors whose purpose is known."""
    trained = [entry.local for entry in trainer.trained]
    stepped = _host_copies(trainer)
    buckets = trained if any(isinstance(chunk, DistributedDataParallel) for chunk in trainer.built.chunks) else []
    return {
        "parameters": _on_device(trainer, _parameters(trainer)),
        "optimizer": _on_device(trainer, [*_moments(trainer), *stepped]),
        "gradients": _on_device(trainer, buckets),
        "temporaries": _on_device(trainer, [part for root in trainer.built.decoders for part in root.buffers()]),
    }


def _host_copies(trainer: Trainer) -> list[Tensor]:
    """Weights that the optimizer updates elsewhere than where they are computed with."""
    return [entry.stepped for entry in trainer.trained if entry.is_stepped_on_host]


def make_sampler(trainer: Trainer) -> Sampler:
    """The sampler of the steps that the job wants profiled."""
    looking = Looking(
        job=trainer.job,
        device=trainer.device,
        decoders=trainer.built.decoders,
        held_bytes=partial(states_held, trainer),
    )
    return Sampler(looking, first_step=trainer.progress.step)


def _on_device(trainer: Trainer, tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors that are on the device; offloaded ones are not."""
    return nbytes([tensor for tensor in tensors if tensor.device.type == trainer.device.type])


def _memory(trainer: Trainer) -> dict[str, object]:
    """Bytes of the worst rank; components are those of the sampled step where there is one."""
    is_cuda = trainer.device.type == "cuda"
    states = states_held(trainer)
    everything = nbytes([*_parameters(trainer), *_moments(trainer), *_host_copies(trainer)])
    values = torch.tensor(
        [
            states["parameters"],
            states["optimizer"],
            everything - states["parameters"] - states["optimizer"],
            torch.cuda.max_memory_allocated() if is_cuda else 0,
            torch.cuda.max_memory_reserved() if is_cuda else 0,
        ],
        dtype=torch.int64,
        device=trainer.device,
    )
    dist.all_reduce(values, op=dist.ReduceOp.MAX)
    parameters, optimizer, host, allocated, reserved = (int(value) for value in values.tolist())
    sample = trainer.sampler.memory if trainer.sampler else None
    counted = {"parameters": parameters, "optimizer": optimizer}
    return {
        "peak_allocated_bytes": allocated if is_cuda else sample.peak_bytes if sample else None,
        "peak_reserved_bytes": reserved if is_cuda else None,
        "host_bytes": host,
        "components_bytes": dict(sample.components_bytes) if sample else counted,
        "most_bytes": dict(sample.most_bytes) if sample else {},
        "phases_bytes": dict(sample.phases_bytes) if sample else {},
        "components_method": METHODS[trainer.device.type] if sample else STATES_METHOD,
    }
