"""What the trainer uses of torch that torch does not offer as public, each with what it is for. Nobody else names it.

A release may rename or drop any of these. They were read in torch 2.11 and 2.13; a version that lacks one is refused
with its name and the versions that have it. What costs an import is asked for when it is first used.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, Store
from torch.distributed.device_mesh import DeviceMesh

from shardwise.train.library_gate import library_gate

with library_gate("torch"):
    # One kernel for a list of tensors, as torch's own optimizers use them.
    from torch import _foreach_copy_ as foreach_copy
    from torch import _foreach_mul_ as foreach_mul
    from torch import _foreach_norm as foreach_norm
    from torch import _fused_adamw_ as fused_adamw
    from torch import _grouped_mm as grouped_mm  # products of experts, whose numbers of rows differ
    from torch import _scaled_mm as scaled_mm  # products of 8-bit matrices
    from torch._C import _current_autograd_node as current_node  # the node of backward that runs
    from torch._C import _current_graph_task_id as backward_id  # -1 outside backward
    from torch._C._autograd import _get_sequence_nr as next_node_number
    from torch._subclasses.fake_tensor import (  # tensors without values: traces, and models that are not filled
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensor,
        FakeTensorMode,
        unset_fake_temporarily,
    )
    from torch.distributed.distributed_c10d import _resolve_process_group as group_named  # of a traceable collective
    from torch.utils._python_dispatch import TorchDispatchMode  # sees every operator, those of backward as well
    from torch.utils._pytree import tree_map_only  # over whatever an operator returns

    # Between these F.scaled_dot_product_attention chooses; they are called and recognised by name.
    flash_attention = torch.ops.aten._scaled_dot_product_flash_attention
    flash_attention_for_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    efficient_attention = torch.ops.aten._scaled_dot_product_efficient_attention
    cudnn_attention = torch.ops.aten._scaled_dot_product_cudnn_attention
    math_attention = torch.ops.aten._scaled_dot_product_attention_math
    scaled_mm_operator = torch.ops.aten._scaled_mm
    collectives = torch.ops._c10d_functional  # traceable, and the same in 2.11 and 2.13, unlike their Python wrappers

    record_allocator_history = torch.cuda.memory._record_memory_history  # documented, underscore and all
    dump_allocator_history = torch.cuda.memory._dump_snapshot

__all__ = [
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "cast_at_once",
    "collectives",
    "compile_as_whole_blocks",
    "cudnn_attention",
    "current_node",
    "dump_allocator_history",
    "efficient_attention",
    "fake_store",
    "flash_attention",
    "flash_attention_for_cpu",
    "flattened",
    "flight_record",
    "foreach_copy",
    "foreach_mul",
    "foreach_norm",
    "fused_adamw",
    "group_in",
    "group_named",
    "grouped_mm",
    "is_in_backward",
    "math_attention",
    "next_node_number",
    "node_number",
    "operator_name",
    "record_allocator_history",
    "scaled_mm",
    "scaled_mm_operator",
    "stay_on_one_stream",
    "storage_key",
    "storage_place",
    "tree_map_only",
    "unflattened",
    "unset_fake_temporarily",
]


def flattened(mesh: DeviceMesh, name: str) -> DeviceMesh:
    """A mesh of several axes as one axis of this name."""
    with library_gate("torch"):
        return mesh._flatten(name)


def unflattened(mesh: DeviceMesh, *, sizes: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """A mesh of one axis as one of several, the last of which runs through neighbours."""
    with library_gate("torch"):
        return mesh._unflatten(0, sizes, names)


def is_in_backward() -> bool:
    """Whether autograd runs a backward pass on this thread."""
    return backward_id() != -1


def node_number(node: Any) -> int:
    """The number that autograd gave a node when it was made, in forward."""
    with library_gate("torch"):
        return node._sequence_nr()


def operator_name(operator: Any) -> str:
    """The name of an operator in its schema, such as ``aten::mm``."""
    with library_gate("torch"):
        return str(operator._schema.name)


def storage_key(tensor: Tensor) -> int:
    """A key that tensors share when they share memory, also tensors without values."""
    with library_gate("torch"):
        return tensor.untyped_storage()._cdata


def group_in(argument: Any) -> ProcessGroup | None:
    """The process group that an operator is given; torch 2.11 hands it over in a box."""
    if isinstance(argument, ProcessGroup):
        return argument
    with library_gate("torch"):
        is_box = isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type())
        return ProcessGroup.unbox(argument) if is_box else None


def stay_on_one_stream(root: nn.Module) -> None:
    """Make FSDP2 cast and copy on the stream that computes, where no other rank is communicated with meanwhile.

    What a stream has freed serves no other one: with gradients on a stream of their own, 8B parameters fill a GPU that
    they fit, and every step gives memory back to the device and asks for it again.
    """
    with library_gate("torch"):
        streams = root._get_fsdp_state()._comm_ctx
        make_streams = streams.lazy_init

    def take_current(*given: Any) -> None:
        make_streams(*given)
        for name in ("all_gather_copy_in_stream", "all_gather_stream", "reduce_scatter_stream", "all_reduce_stream"):
            setattr(streams, name, torch.cuda.current_stream())

    streams.lazy_init = take_current


def cast_at_once(unit: nn.Module) -> None:
    """Let FSDP2 cast the parameters of a unit in one kernel, and its gradients, where one rank holds them whole.

    FSDP2 itself casts one parameter after the other and then copies what it cast, two kernels for each: a block of
    GPT-2 has twelve, and its host takes longer to launch them than the GPU to run the block.
    """
    with library_gate("torch"):
        from torch.distributed.fsdp._fully_shard import _fsdp_collectives as inside  # noqa: PLC0415 - with FSDP2 alone
        from torch.distributed.fsdp._fully_shard._fsdp_param import alloc_storage  # noqa: PLC0415 - as above

        preserving = torch.autograd._unsafe_preserve_version_counter
        group = unit._get_fsdp_state()._fsdp_param_group
        if group is None or group._all_gather_process_group.size() > 1:
            return
        one_by_one = group.wait_for_unshard
        inside.foreach_reduce_scatter_copy_in = _copy_gradients_in

    def cast() -> None:
        parts = group.fsdp_params
        kept = getattr(group.comm_ctx, "all_gather_state", None)  # what another unit gathered
        if group._all_gather_result is None or kept is not None or not all(map(_is_only_cast, parts)):
            one_by_one()
            return
        copies = [part.all_gather_outputs[0] for part in parts]
        for copy in copies:
            alloc_storage(copy)
        with torch.no_grad(), preserving(tuple(copies)):
            foreach_copy(copies, [part._sharded_param_data for part in parts])
        group._to_unsharded()
        group._all_gather_result = None

    group.wait_for_unshard = cast


def _is_only_cast(part: Any) -> bool:
    """Whether FSDP2 computes with the cast of what it stores, and has made room for it in an earlier pass."""
    is_packed = hasattr(part._sharded_local_tensor, "fsdp_pre_all_gather")
    return bool(part.all_gather_outputs) and not is_packed and not part.offload_to_cpu


def _copy_gradients_in(gradients: list[Tensor], buffer: Tensor, num_ranks: int) -> None:
    """Copy the gradients of a unit into the buffer that FSDP2 reduces."""
    if num_ranks > 1:
        torch.ops.fsdp.chunk_cat(gradients, dim=0, num_chunks=num_ranks, out=buffer.view(num_ranks, -1))
        return
    parts = buffer.split([gradient.numel() for gradient in gradients])
    foreach_copy([part.view(gradient.shape) for part, gradient in zip(parts, gradients, strict=True)], gradients)


def compile_as_whole_blocks(*, saves_elementwise: bool) -> None:
    """Let the compiler divide no block at the borders of DDP's buckets, and say whether it keeps elementwise results.

    Compiled code makes what is not kept again in the kernel of backward that reads it.
    """
    with library_gate("torch"):
        from torch._dynamo import config as dynamo  # noqa: PLC0415 - a second of imports
        from torch._functorch import config as functorch  # noqa: PLC0415 - as above

        dynamo.optimize_ddp = False
        functorch.ban_recompute_materialized_backward = saves_elementwise


def fake_store() -> Store:
    """The store of a process group named "fake", whose other ranks do not exist; importing it makes the name known."""
    with library_gate("torch"):
        from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415 - only traces want it
    return FakeStore()


def storage_place(*, file: str, offset: int, length: int) -> Any:
    """Where the bytes of one tensor stand in a distributed checkpoint, in the form that torch's reader wants."""
    with library_gate("torch"):
        from torch.distributed.checkpoint.filesystem import _StorageInfo  # noqa: PLC0415 - only checkpoints want it
    return _StorageInfo(relative_path=file, offset=offset, length=length)


def flight_record(kind: str) -> tuple[Any, Any] | None:
    """torch's record of the last collectives, ``nccl``'s or ``fr``'s: what writes it as JSON, and as a pickle.

    ``None`` where this build of torch keeps none.
    """
    found = torch._C._distributed_c10d
    as_json = getattr(found, f"_dump_{kind}_trace_json", None)
    as_pickle = getattr(found, f"_dump_{kind}_trace", None)
    return None if as_json is None or as_pickle is None else (as_json, as_pickle)
