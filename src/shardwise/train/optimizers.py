"""Optimizers over local parts: what every one of them computes is elementwise, so shards need no communication."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from shardwise.errors import RecipeError
from shardwise.optimizers import OPTIMIZERS, OptimizerKind, TrainerOption
from shardwise.train.halves import Halves
from shardwise.train.job import Job, OptimizerSpec
from shardwise.train.optimizer_kinds import AdamW8bit
from shardwise.train.parameters import Trained


def make_optimizer(trained: tuple[Trained, ...], job: Job) -> Optimizer:
    """The recipe's optimizer; norms, biases, other vectors and what the job spares do not decay.

    Raises:
        RecipeError: the runtime has no such optimizer.
    """
    spec, kind = job.optimizer, OPTIMIZERS[job.recipe.optimizer]
    by_stepped = {id(entry.stepped): entry for entry in trained}
    options: dict[TrainerOption, object] = {
        "betas": (spec.beta_1_fraction, spec.beta_2_fraction),
        "eps": spec.epsilon,
        "momentum": spec.beta_1_fraction,
        "foreach": True,
        "rest_of": lambda stepped: by_stepped[id(stepped)].rest,
        "whole": lambda stepped, part: by_stepped[id(stepped)].whole(part),
        "part": lambda stepped, whole: by_stepped[id(stepped)].own_part(whole).to(stepped.device),
    }
    groups = _groups(trained, spec, splits_matrices=kind.orthogonalises_matrices)
    given = {name: options[name] for name in kind.trainer_options}
    return optimizer_class(kind)(groups, lr=spec.learning_rate, **given)


def optimizer_class(kind: OptimizerKind) -> Callable[..., Optimizer]:
    """The class that a record names.

    Raises:
        RecipeError: the record names none.
    """
    if kind.torch_class is None:
        built = [name for name, other in OPTIMIZERS.items() if other.torch_class is not None]
        raise RecipeError(
            f"the native runtime has no optimizer {kind.name}",
            code="train-optimizer",
            fix=f"set recipe.optimizer to {', '.join(built[:-1])} or {built[-1]}",
        )
    module, _, name = kind.torch_class.rpartition(".")
    found: Callable[..., Optimizer] = getattr(import_module(module), name)
    return found


def _groups(trained: tuple[Trained, ...], spec: OptimizerSpec, *, splits_matrices: bool) -> list[dict[str, Any]]:
    """Parameters that share decay, peak learning rate and kind of update, in groups that hold any.

    A group's ``peak_lr`` is the learning rate that :func:`set_learning_rates` gives the shape of the schedule.
    """
    groups: dict[tuple[bool, bool, float], list[Tensor]] = {}
    for entry in trained:
        decays = entry.decays and not any(fnmatchcase(entry.name, pattern) for pattern in spec.undecayed)
        own_rates = (rate for pattern, rate in spec.group_rates if fnmatchcase(entry.name, pattern))
        is_orthogonal = splits_matrices and entry.is_block_matrix
        key = (is_orthogonal, not decays, next(own_rates, spec.learning_rate))
        groups.setdefault(key, []).append(entry.stepped)
    return [
        {
            "params": params,
            "weight_decay": 0.0 if is_spared else spec.weight_decay_fraction,
            "peak_lr": rate,
            **({"is_orthogonal": True} if is_orthogonal else {}),
        }
        for (is_orthogonal, is_spared, rate), params in sorted(groups.items(), key=lambda item: item[0])
    ]


def learning_rate(spec: OptimizerSpec, *, step: int, num_steps: int) -> float:
    """The learning rate of a step, counted from 0: a linear warm-up, then constant, linear or cosine decay, or ``wsd``.

    ``wsd`` (warm-up, stable, decay) keeps the peak until the last ``num_decay_steps``, where the rate falls linearly.

    Source: Hu et al. 2024, arXiv:2404.06395, section 4.2 (WSD).

    >>> learning_rate(OptimizerSpec(learning_rate=1.0, num_warmup_steps=4), step=1, num_steps=10)
    0.5
    """
    if step < spec.num_warmup_steps:
        return spec.learning_rate * (step + 1) / spec.num_warmup_steps
    start = spec.num_warmup_steps
    if spec.decay == "wsd":
        num_last = max(1, num_steps // 10) if spec.num_decay_steps is None else spec.num_decay_steps
        start = max(start, num_steps - num_last)
    done = max(0, step - start) / max(1, num_steps - start)
    lowest = spec.min_learning_rate_ratio
    line = lowest + (1 - lowest) * (1 - done)
    shapes = {
        "constant": 1.0,
        "linear": line,
        "cosine": lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * done)),
        "wsd": line,
    }
    return spec.learning_rate * shapes[spec.decay]


def set_learning_rates(optimizer: Optimizer, spec: OptimizerSpec, *, step: int, num_steps: int) -> float:
    """Use the schedule in the next step, for each group from its own peak; returns the rate of the others."""
    for group in optimizer.param_groups:
        own = replace(spec, learning_rate=group["peak_lr"])
        group["lr"] = learning_rate(own, step=step, num_steps=num_steps)
    return learning_rate(spec, step=step, num_steps=num_steps)


class ModelStates:
    """The weights as a checkpoint holds them: whole tensors by Hugging Face name, each rank giving its part."""

    def __init__(
        self, trained: tuple[Trained, ...], halves: Halves, *, untrained: Mapping[str, Tensor] | None = None
    ) -> None:
        """``untrained`` belongs to the model as well."""
        self.tensors = {**{entry.name: entry.parameter for entry in trained}, **(untrained or {})}
        self.halves = halves

    def state_dict(self) -> dict[str, Any]:
        """Weights by name."""
        return {name: self.halves.whole(tensor) for name, tensor in self.tensors.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """``torch.distributed.checkpoint`` has loaded into the tensors in place; other tensors are copied."""
        for name, tensor in self.tensors.items():
            if state[name].data_ptr() != tensor.data_ptr():
                self.halves.take(tensor, state[name])


class OptimizerStates:
    """The optimizer's states as a checkpoint holds them: ``name.moment``, sharded like the weight they belong to."""

    def __init__(self, trained: tuple[Trained, ...], optimizer: Optimizer) -> None:
        self.trained, self.optimizer = trained, optimizer

    def state_dict(self) -> dict[str, Any]:
        """Moments and step counts by name; made with zeros where no step was done yet."""
        found: dict[str, Any] = {}
        for entry in self.trained:
            for key, value in self._states(entry).items():
                found[self._name(entry, key, value)] = entry.as_sharded(value) if isinstance(value, Tensor) else value
        return found

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what was loaded."""
        for entry in self.trained:
            own = self._states(entry)
            for key, value in own.items():
                loaded = state[self._name(entry, key, value)]
                if isinstance(value, Tensor):
                    part = loaded.to_local() if hasattr(loaded, "to_local") else loaded
                    if part.data_ptr() != value.data_ptr():
                        value.copy_(part)
                else:
                    own[key] = loaded
            if isinstance(self.optimizer, AdamW8bit):
                self.optimizer.take_moments(entry.stepped, own)

    def _states(self, entry: Trained) -> dict[str, Any]:
        """States of a parameter; 8-bit moments as the numbers they stand for, so that any layout can take them."""
        if not self.optimizer.state.get(entry.stepped):
            self._make_states()
        states = self.optimizer.state[entry.stepped]
        if isinstance(self.optimizer, AdamW8bit):
            return {"step": states["step"], **self.optimizer.moments(entry.stepped)}
        return states

    def _name(self, entry: Trained, key: str, value: object) -> str:
        """Statistics of a part of a matrix (Adafactor's) belong to that part alone, so its place is in their name."""
        is_of_part = isinstance(value, Tensor) and value.numel() > 1 and value.shape != entry.local.shape
        return f"{entry.name}.{key}{entry.place if is_of_part else ''}"

    def _make_states(self) -> None:
        """A step with zero gradients and no learning rate makes the states; step counts go back to zero."""
        held = [entry.stepped.grad for entry in self.trained]
        rates = [group["lr"] for group in self.optimizer.param_groups]
        decays = [group["weight_decay"] for group in self.optimizer.param_groups]
        for group in self.optimizer.param_groups:
            group["lr"], group["weight_decay"] = 0.0, 0.0
        for entry in self.trained:
            entry.stepped.grad = torch.zeros_like(entry.stepped, dtype=entry.stepped.grad_dtype)
        self.optimizer.step()
        for group, rate, decay in zip(self.optimizer.param_groups, rates, decays, strict=True):
            group["lr"], group["weight_decay"] = rate, decay
        for entry, gradient in zip(self.trained, held, strict=True):
            entry.stepped.grad = gradient
            step = self.optimizer.state[entry.stepped].get("step")
            if isinstance(step, Tensor):
                step.zero_()
