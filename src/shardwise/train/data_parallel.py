"""Data parallelism: what the ranks that see different tokens divide among them.

One mechanism, FSDP2, serves every ZeRO stage: between steps a rank keeps its shard of parameters, gradients and
optimizer states, and the stage says for how long whole ones exist within a step.

=====  =========================================  ==================================================
stage  whole parameters                           whole gradients
=====  =========================================  ==================================================
0      always (sharded over one rank)             reduced over all copies once per step
1      from the first forward to the last         accumulated whole, reduced and scattered once per
       backward of a step                         step
2      from the first forward to the last         one unit at a time: scattered in every micro-batch
       backward of a step
3      one unit at a time                         one unit at a time: scattered in every micro-batch
=====  =========================================  ==================================================

Gradients are summed, never averaged: the loss is divided by the tokens of the global batch once, at the end.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from shardwise.layout import Layout
from shardwise.recipe import Precision
from shardwise.step.own_runtime import frees_after_forward, is_replicated, reduces_every_micro_batch
from shardwise.train.decoder.experts import Experts
from shardwise.train.job import Job
from shardwise.train.mesh import Mesh
from shardwise.train.units import Unit

COMPUTE_DTYPES: dict[Precision, torch.dtype | None] = {
    "fp32": None,
    "bf16": None,
    "bf16-mixed": torch.bfloat16,
    "fp16-mixed": torch.float16,
    "fp8-mixed": torch.bfloat16,
}
REDUCE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def shard_units(units: Iterable[Unit], root: nn.Module, *, job: Job, mesh: Mesh) -> None:
    """Shard every unit and then the rest of the model; each unit is filled by the caller's iterator just before."""
    states = _states_mesh(mesh)
    options = {"mp_policy": _precision_policy(job), "offload_policy": _offload_policy(job, mesh)}
    for unit in units:
        reshards = _reshards(unit, job)
        for experts in _apart(unit.module, mesh):
            fully_shard(experts, mesh=_expert_mesh(mesh), reshard_after_forward=reshards, **options)
        fully_shard(unit.module, mesh=states, reshard_after_forward=reshards, **options)
    fully_shard(root, mesh=states, reshard_after_forward=False, **options)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def set_prefetch(blocks: list[nn.Module], layout: Layout) -> None:
    """Gather the parameters of the next blocks, forward and backward, while one block computes.

    FSDP2 by itself gathers one unit ahead; more has to be said.
    """
    ahead = layout.prefetch_units
    sharded = [block for block in blocks if isinstance(block, FSDPModule)]
    for index, block in enumerate(sharded if ahead > 1 else []):
        block.set_modules_to_forward_prefetch(sharded[index + 1 : index + 1 + ahead])
        block.set_modules_to_backward_prefetch(sharded[max(0, index - ahead) : index][::-1])


def begin_micro_batch(root: nn.Module, layout: Layout, *, is_last: bool) -> None:
    """Say before a micro-batch's backward what its gradients and parameters do afterwards."""
    if not isinstance(root, FSDPModule):
        return
    root.set_is_last_backward(is_last)
    root.set_requires_all_reduce(is_last)
    if not reduces_every_micro_batch(layout):
        root.set_requires_gradient_sync(is_last)
    if is_replicated(layout) or layout.zero_stage < 3:
        root.set_reshard_after_backward(is_last)


def keep_gradients_here(root: nn.Module, *, is_last: bool) -> AbstractContextManager[None]:
    """DDP accumulates without communicating until the last micro-batch."""
    if isinstance(root, DistributedDataParallel) and not is_last:
        return root.no_sync()
    return nullcontext()


def _states_mesh(mesh: Mesh) -> DeviceMesh:
    if is_replicated(mesh.layout):
        return mesh.copies_undivided
    return mesh.replicas_and_shards if mesh.layout.dp_replicate > 1 else mesh.shards


def _expert_mesh(mesh: Mesh) -> DeviceMesh:
    return mesh.replicas_and_expert_shards if mesh.layout.dp_replicate > 1 else mesh.expert_shards


def _apart(module: nn.Module, mesh: Mesh) -> list[nn.Module]:
    """Experts that other ranks divide than divide the rest of their block."""
    if mesh.layout.ep == 1:
        return []
    return [part for part in module.modules() if isinstance(part, Experts)]


def _reshards(unit: Unit, job: Job) -> bool | int:
    """Whether a unit is freed after forward, or kept by a smaller group of ranks."""
    layout, tuning = job.layout, job.tuning
    keeps = (
        not frees_after_forward(layout)
        or (not unit.is_block and (tuning.is_embedding_kept or not unit.is_embedding))
        or (unit.is_last_block and tuning.is_last_unit_kept)
    )
    return False if keeps else layout.reshard_size or True


def _precision_policy(job: Job) -> MixedPrecisionPolicy:
    dtype = COMPUTE_DTYPES[job.recipe.precision]
    if dtype is None:
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    reduce_dtype = REDUCE_DTYPES[job.recipe.reduce_dtype or "fp32"]
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduce_dtype, cast_forward_inputs=False)


def _offload_policy(job: Job, mesh: Mesh) -> OffloadPolicy:
    if job.recipe.offload != "parameters":
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
