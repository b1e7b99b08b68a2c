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

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from shardwise.layout import Layout
from shardwise.recipe import Precision
from shardwise.step.native_engine import (
    can_exchange_gradients,
    frees_after_forward,
    gathers_every_micro_batch,
    is_alone,
    is_replicated,
    reduces_every_micro_batch,
)
from shardwise.train.decoder.experts import Experts
from shardwise.train.decoder.model import Decoder
from shardwise.train.job import Job
from shardwise.train.mesh import Mesh
from shardwise.train.spread_vocabulary import Spread, can_spread, spread_rows
from shardwise.train.torch_private import cast_at_once, stay_on_one_stream
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
    spread: set[nn.Parameter] = set()
    has_own_matrices = isinstance(root, Decoder) and not root.config.tie_word_embeddings
    is_spread = can_spread(job, has_own_matrices=has_own_matrices)
    for unit in units:
        if is_spread and unit.is_vocabulary:
            spread_rows(unit.module, mesh)
            spread.update(unit.module.parameters())
            continue
        reshards = _reshards(unit, job)
        for experts in _apart(unit.module, mesh):
            fully_shard(experts, mesh=_expert_mesh(mesh), reshard_after_forward=reshards, **options)
        fully_shard(unit.module, mesh=states, reshard_after_forward=reshards, **options)
    if is_spread and isinstance(root, Decoder):
        dtype = COMPUTE_DTYPES[job.recipe.precision] or next(root.parameters()).dtype
        # A group of its own: on that of the shards, tokens would queue behind the gradients of blocks.
        ranks = torch.distributed.get_process_group_ranks(mesh.shards.get_group())
        root.spread(Spread(group=torch.distributed.new_group(ranks), dtype=dtype))
    fully_shard(root, mesh=states, reshard_after_forward=False, ignored_params=spread, **options)
    if mesh.layout.world_size == 1 and mesh.device_type == "cuda" and isinstance(root, FSDPModule):
        stay_on_one_stream(root)
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)
            cast_at_once(module)
            if is_alone(mesh.layout):
                module.set_custom_reduce_scatter(UnmovedReduction())
                continue
            module.set_gradient_divide_factor(1.0)
            if reduces_by_exchange(job):
                module.set_custom_reduce_scatter(ExchangedReduction())


def reduces_by_exchange(job: Job) -> bool:
    """Whether gradients travel in bf16 and are added up in fp32: not where they add up over micro-batches first."""
    return bool(job.layout.exchange_gradients) and can_exchange_gradients(job.layout, job.recipe)


class UnmovedReduction:
    """FSDP2's reduce-scatter where one rank has all gradients: the buffer it would send from is the one it keeps.

    FSDP2 asks for the buffer it sends from and then for the one it receives into, and copies one to the other. A token
    table of 128,256 x 3,072 would so exist in fp32 three times, the quotient by the divide factor being the third.
    """

    def __init__(self) -> None:
        self._sent: Tensor | None = None

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A new buffer at the first call; the second call gets the same buffer to keep the sum in."""
        if self._sent is None:
            self._sent = torch.empty(*size, dtype=dtype, device=device)
            return self._sent
        kept, self._sent = self._sent, None
        return kept

    def __call__(self, *_buffers: Any, **_options: Any) -> None:
        """There is nothing to send; FSDP2 calls this where there are several ranks."""


class ExchangedReduction:
    """FSDP2's reduce-scatter as an all-to-all of what backward made, and a sum in fp32 where it arrives.

    Half the bytes of a reduction in fp32, and the same numbers: what is added up is what would have been cast first.
    FSDP2 asks for the buffer it sends from and then for the one it receives into; the second is in fp32.
    """

    def __init__(self) -> None:
        self._is_output_next = False

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Room for the gradients of all ranks, then for this rank's sums."""
        is_output, self._is_output_next = self._is_output_next, not self._is_output_next
        return torch.empty(*size, dtype=torch.float32 if is_output else dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        """Fill ``output_tensor`` with this rank's part of the sum of all ranks' ``input_tensor``."""
        del op, async_op
        arrived = torch.empty_like(input_tensor)
        torch.distributed.all_to_all_single(arrived, input_tensor, group=group)
        torch.sum(arrived.unflatten(0, (group.size(), -1)), dim=0, dtype=torch.float32, out=output_tensor)


def set_prefetch(blocks: list[nn.Module], layout: Layout) -> None:
    """Gather the parameters of the next blocks, forward and backward, while one block computes.

    FSDP2 by itself gathers one unit ahead; more, or nothing, has to be said.
    """
    ahead = layout.prefetch_units
    sharded = [block for block in blocks if isinstance(block, FSDPModule)]
    for index, block in enumerate(sharded if ahead != 1 else []):
        if ahead == 0:
            block.register_forward_pre_hook(_wait_for_device, prepend=True)
            block.set_modules_to_backward_prefetch([block])  # itself is there already: nothing is gathered ahead
            continue
        block.set_modules_to_forward_prefetch(sharded[index + 1 : index + 1 + ahead])
        block.set_modules_to_backward_prefetch(sharded[max(0, index - ahead) : index][::-1])


def _wait_for_device(block: nn.Module, inputs: object) -> None:
    """Wait before FSDP2 gathers a block: a host that runs ahead would put the gather under the block before."""
    del block, inputs
    if torch.cuda.is_available():
        torch.cuda.current_stream().synchronize()


def gather_ahead_on_cpu(blocks: list[nn.Module], layout: Layout) -> None:
    """Start the next block's gather before a block computes; on CPUs FSDP2's own prefetch waits for the gather at once.

    Blocks that stay gathered are left alone by FSDP2.
    """
    sharded = [block for block in blocks if isinstance(block, FSDPModule)]
    ahead = layout.prefetch_units if layout.zero_stage == 3 and not is_replicated(layout) and layout.pp == 1 else 0
    for index, block in enumerate(sharded if ahead else []):
        block.register_forward_pre_hook(_gathering(sharded[index + 1 : index + 1 + ahead]))
        block.register_full_backward_pre_hook(_gathering(sharded[max(0, index - ahead) : index][::-1]))


def _gathering(following: list[FSDPModule]) -> Callable[..., None]:
    def gather(*_given: object) -> None:
        for block in following:
            block.unshard(async_op=True)

    return gather


def begin_micro_batch(root: nn.Module, job: Job, *, is_last: bool) -> None:
    """Say before a micro-batch's backward what its gradients and parameters do afterwards."""
    if not isinstance(root, FSDPModule):
        return
    root.set_is_last_backward(is_last)
    root.set_requires_all_reduce(is_last)
    if not reduces_every_micro_batch(job.layout):
        root.set_requires_gradient_sync(is_last)
    if not gathers_every_micro_batch(layout=job.layout, recipe=job.recipe):
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
    """Experts, which are divided over other ranks than the rest of their block."""
    if mesh.layout.ep == 1:
        return []
    return [part for part in module.modules() if isinstance(part, Experts)]


def _reshards(unit: Unit, job: Job) -> bool | int:
    """Whether a unit is freed after forward, or kept by a smaller group of ranks."""
    layout, tuning = job.layout, job.tuning
    keeps = (
        not frees_after_forward(layout=layout, recipe=job.recipe)
        or (not unit.is_block and (tuning.is_embedding_kept or not unit.is_embedding))
        or (unit.is_last_block and tuning.is_last_unit_kept)
    )
    return False if keeps else layout.reshard_size or True


def _precision_policy(job: Job) -> MixedPrecisionPolicy:
    dtype = COMPUTE_DTYPES[job.recipe.precision]
    if dtype is None:
        return MixedPrecisionPolicy(cast_forward_inputs=False)
    # ``None`` leaves gradients as backward made them until the exchange has added them up.
    reduce_dtype = None if reduces_by_exchange(job) else REDUCE_DTYPES[job.recipe.reduce_dtype or "fp32"]
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduce_dtype, cast_forward_inputs=False)


def _offload_policy(job: Job, mesh: Mesh) -> OffloadPolicy:
    if job.recipe.offload != "parameters":
        return OffloadPolicy()
    return CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
