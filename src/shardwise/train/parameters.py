"""The trained parameters of this rank, as the local tensors that norms and optimizers work on.

A DTensor's arithmetic goes through a dispatcher that costs microseconds per tensor; local parts share its storage.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from shardwise.train.mesh import Mesh

FSDP_NAMES = ("_checkpoint_wrapped_module.", "_orig_mod.", "module.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One trained parameter."""

    name: str
    """As in the Hugging Face checkpoint."""
    parameter: nn.Parameter
    local: nn.Parameter
    """This rank's part, on the same storage."""
    num_copies: int
    """Ranks of the job that hold this same part."""

    def take_gradient(self) -> None:
        """Hand the parameter's gradient to the local part."""
        gradient = self.parameter.grad
        self.local.grad = None if gradient is None else local_part(gradient)

    def as_sharded(self, part: Tensor) -> Tensor:
        """A tensor of the local part's shape, such as a moment, as the piece of the whole that it is."""
        whole = self.parameter
        if not isinstance(whole, DTensor) or part.shape != self.local.shape:
            return part
        return DTensor.from_local(
            part, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, on the same storage; a plain tensor as it is."""
    detached = tensor.detach()
    return detached.to_local() if isinstance(detached, DTensor) else detached


def trained_parameters(chunks: list[nn.Module], mesh: Mesh) -> tuple[Trained, ...]:
    """Every parameter that is trained, tied ones once."""
    return tuple(
        Trained(
            name=name,
            parameter=parameter,
            local=nn.Parameter(local_part(parameter)),
            num_copies=_num_copies(parameter, mesh),
        )
        for name, parameter in _named(chunks)
        if parameter.requires_grad
    )


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers put into it."""
    for wrapper in FSDP_NAMES:
        name = name.replace(wrapper, "")
    return name


def _named(chunks: list[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            yield plain_name(name), parameter


def _num_copies(parameter: Tensor, mesh: Mesh) -> int:
    """Ranks of this pipeline stage over the pieces the parameter is divided into."""
    pieces = 1
    if isinstance(parameter, DTensor):
        for size, placement in zip(parameter.device_mesh.shape, parameter.placements, strict=True):
            pieces *= 1 if placement.is_replicate() else size
    return mesh.layout.world_size // mesh.layout.pp // pieces


def nbytes(tensors: Iterator[Tensor] | list[Tensor]) -> int:
    """Bytes of local tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def world_sum(values: Tensor) -> Tensor:
    """The sum over all ranks of the job, in place."""
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        torch.distributed.all_reduce(values)
    return values
