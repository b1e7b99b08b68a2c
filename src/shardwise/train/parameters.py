"""The trained parameters of this rank, as the local tensors that norms and optimizers work on.

A DTensor's arithmetic goes through a dispatcher that costs microseconds per tensor; local parts share its storage.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from shardwise.train.decoder.model import Decoder
from shardwise.train.foreign import ForeignModule
from shardwise.train.halves import Halves
from shardwise.train.huggingface import TransformersDecoder
from shardwise.train.mesh import Mesh
from shardwise.train.nf4 import QuantisedLinear
from shardwise.train.parameter_kinds import kind_of
from shardwise.train.torch_private import foreach_copy

HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"
"""A tied head that stands alone at the end of a pipeline goes by the name of the table."""
WRAPPERS = frozenset(("_checkpoint_wrapped_module", "_orig_mod"))
"""Modules that torch puts around others; DDP's stands at the beginning of a name alone."""
DDP = "module."


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One trained parameter."""

    name: str
    """Name of the parameter in the Hugging Face checkpoint."""
    parameter: nn.Parameter
    local: nn.Parameter
    """This rank's part, on the same storage."""
    stepped: nn.Parameter
    """The tensor that the optimizer updates: the local part, or its copy on the host, or an fp32 one of a bf16 part."""
    rest: Tensor | None = None
    """The part of the weight that rounding to bf16 took off, which the optimizer updates as well (``halves.py``)."""
    num_copies: int
    """Ranks of the job that hold this same part."""
    decays: bool = True
    """Whether the parameter decays: not norms, biases, other vectors, and what its model marks."""
    is_block_matrix: bool = False
    """Whether the parameter is a matrix of a block or a stack of matrices; no vector, table, convolution or head."""

    @property
    def is_stepped_on_host(self) -> bool:
        """Whether the optimizer updates a copy of the local part as it is, and not in fp32 beside it."""
        return self.stepped is not self.local and self.stepped.dtype == self.local.dtype

    def take_gradient(self) -> None:
        """Hand the parameter's gradient to the local part."""
        gradient = self.parameter.grad
        self.local.grad = None if gradient is None else local_part(gradient)

    def refresh_host(self) -> None:
        """Copy weights to the host after they were loaded; an fp32 copy was loaded itself."""
        if self.is_stepped_on_host:
            self.stepped.detach().copy_(self.local.detach())

    def whole(self, part: Tensor) -> Tensor:
        """The tensor of which every rank gives a part, gathered; a collective call."""
        sharded = self.as_sharded(part)
        return sharded.full_tensor() if isinstance(sharded, DTensor) else sharded

    def own_part(self, whole: Tensor) -> Tensor:
        """This rank's part of a whole tensor."""
        if not isinstance(self.parameter, DTensor) or self.local.numel() == 0:
            return whole if self.local.numel() else torch.empty_like(self.local)
        # What torch.distributed.checkpoint asks a tensor for; right for every placement.
        (chunk,) = self.parameter.__create_chunk_list__()
        return whole[tuple(slice(first, first + size) for first, size in zip(chunk.offsets, chunk.sizes, strict=True))]

    @property
    def place(self) -> str:
        """Offset of this rank's part in the whole tensor, as a name; empty when the part is the whole."""
        if not isinstance(self.parameter, DTensor) or self.local.shape == self.parameter.shape:
            return ""
        chunks = self.parameter.__create_chunk_list__()
        return "@" + "_".join(str(offset) for chunk in chunks for offset in chunk.offsets)

    def as_sharded(self, part: Tensor) -> Tensor:
        """A tensor of the local part's shape, such as a moment, as the piece of the whole that it is."""
        whole = self.parameter
        if not isinstance(whole, DTensor) or part.shape != self.local.shape:
            return part
        return DTensor.from_local(
            part, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape, stride=whole.stride()
        )


def send_gradients(trained: Sequence[Trained]) -> None:
    """Copy gradients to the copies that the optimizer updates; copies to the host do not wait.

    A copy whose part has no gradient in this step gets none, so that it is not updated with an earlier one.
    """
    copied = [entry for entry in trained if entry.stepped is not entry.local]
    sent = [entry for entry in copied if entry.local.grad is not None]
    for entry in copied:
        if entry.local.grad is None:
            entry.stepped.grad = None
    for entry in sent:
        if entry.stepped.grad is None:
            entry.stepped.grad = torch.empty_like(entry.stepped, pin_memory=entry.stepped.is_pinned())
    _copy([entry.stepped.grad for entry in sent], [entry.local.grad for entry in sent])


def take_updates(trained: Sequence[Trained]) -> None:
    """Copy updated weights back from the copies that the optimizer updated."""
    taken = [entry for entry in trained if entry.stepped is not entry.local]
    _copy([entry.local.detach() for entry in taken], [entry.stepped.detach() for entry in taken])


def _copy(targets: list[Any], sources: list[Any]) -> None:
    if targets:
        foreach_copy(targets, sources, non_blocking=True)


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor, on the same storage; a plain tensor as it is."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    with torch.no_grad():  # with a gradient asked for, a DTensor makes three tensors on the way
        return tensor.to_local().detach()


def on_host(part: Tensor) -> Tensor:
    """A copy in host memory, page-locked where a GPU copies from it."""
    return part.detach().cpu().clone() if part.device.type == "cpu" else part.detach().cpu().pin_memory()


def trained_parameters(
    decoders: Sequence[Decoder | TransformersDecoder | ForeignModule],
    mesh: Mesh,
    *,
    halves: Halves | None = None,
    steps_on_host: bool = False,
) -> tuple[Trained, ...]:
    """Every parameter that is trained, tied ones once."""
    found = []
    tied = {id(parameter) for parameter in tied_ends(decoders)}
    blocks = [block for decoder in decoders for block in decoder.blocks()]
    in_blocks = {id(parameter) for block in blocks for parameter in block.parameters()}
    marked = {name for decoder in decoders if isinstance(decoder, TransformersDecoder) for name in decoder.undecayed}
    owners, halves = _owners(decoders), halves or Halves()
    for name, parameter in _named(decoders):
        if parameter.requires_grad:
            local = nn.Parameter(local_part(parameter))
            local.grad_dtype = parameter.grad_dtype
            copy = nn.Parameter(on_host(local)) if steps_on_host else halves.copies.get(parameter)
            kind = kind_of(owners[id(parameter)], name.rpartition(".")[2], parameter)
            entry = Trained(
                name=name,
                parameter=parameter,
                local=local,
                stepped=local if copy is None else copy,
                rest=halves.rests.get(parameter),
                num_copies=_num_copies(parameter, mesh) * (2 if id(parameter) in tied else 1),
                decays=kind != "scale" and name not in marked,
                is_block_matrix=kind == "matrix" and id(parameter) in in_blocks and name not in marked,
            )
            found.append(entry)
    return tuple(found)


def _owners(decoders: Sequence[nn.Module]) -> dict[int, nn.Module]:
    """The module that holds each parameter, by the parameter's ``id``; of tied ones the first."""
    found: dict[int, nn.Module] = {}
    for module in (module for decoder in decoders for module in decoder.modules()):
        for parameter in module.parameters(recurse=False):
            found.setdefault(id(parameter), module)
    return found


def base_parameters(chunks: list[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that a checkpoint of the model holds densely: no adapters, no packed matrices."""
    packed = {f"{name}.weight" for name, _ in quantised_layers(chunks)}
    for name, parameter in _named(chunks):
        is_adapter = name.endswith((".lora_A.weight", ".lora_B.weight"))
        if not is_adapter and name not in packed:
            yield name, parameter


def kept_buffers(decoders: Sequence[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    """The buffers that belong to the model's state, such as router biases; tables that follow from a config do not."""
    for decoder in decoders:
        if isinstance(decoder, TransformersDecoder):
            named = {plain_name(name): buffer for name, buffer in decoder.named_buffers()}
            yield from ((name, named[name]) for name in decoder.kept_buffer_names)


def untrained_states(decoders: Sequence[nn.Module]) -> dict[str, Tensor]:
    """What a checkpoint of the whole model holds beside trained parameters: buffers, and parameters that stay."""
    fixed = {name: p for name, p in _named(list(decoders)) if not p.requires_grad}
    return {**fixed, **dict(kept_buffers(decoders))}


def quantised_layers(chunks: list[nn.Module]) -> Iterator[tuple[str, QuantisedLinear]]:
    """The layers whose matrices are packed, by name."""
    for chunk in chunks:
        for name, module in chunk.named_modules():
            if isinstance(module, QuantisedLinear):
                yield plain_name(name), module


def tied_ends(chunks: Sequence[nn.Module]) -> list[nn.Parameter]:
    """Tables of this rank whose twin another pipeline stage holds."""
    ends = [chunk.tied_end for chunk in chunks if isinstance(chunk, Decoder)]
    return [end for end in ends if end is not None]


def held_parameters(chunks: Sequence[nn.Module]) -> list[Tensor]:
    """This rank's parts of all parameters, trained or frozen; tied ones once."""
    return [local_part(parameter) for _, parameter in _named(chunks)]


def plain_name(name: str) -> str:
    """A parameter's name without what wrappers put into it."""
    return ".".join(part for part in name.removeprefix(DDP).split(".") if part not in WRAPPERS)


def _named(chunks: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Parameter]]:
    for chunk in chunks:
        is_twin = isinstance(chunk, Decoder) and chunk.tied_end is not None
        for name, parameter in chunk.named_parameters():
            plain = plain_name(name)
            yield (TABLE if is_twin and plain == HEAD else plain), parameter


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
