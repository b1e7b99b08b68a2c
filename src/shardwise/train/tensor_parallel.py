"""Tensor and expert parallelism: which weights are divided along which dim.

Parameters become DTensors, so that checkpoints know what a part is a part of; the blocks compute with local parts and
call their collectives themselves (``decoder/groups.py``).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from shardwise.errors import LayoutError
from shardwise.train.decoder.blocks import Attention, FeedForward, Linear
from shardwise.train.decoder.experts import Experts
from shardwise.train.decoder.model import Decoder, Embedding, Head
from shardwise.train.lora import DividedInputs, adapter_of
from shardwise.train.mesh import Mesh
from shardwise.train.nf4 import BLOCK, QuantisedLinear
from shardwise.train.torch_private import unflattened

__all__ = [
    "PartGradient",
    "Parts",
    "column_parts",
    "divide_experts",
    "divide_linear",
    "divide_tensors",
    "divide_weight",
    "part_gradients",
    "row_parts",
]

COLUMN, ROW, EXPERT = Shard(0), Shard(1), Shard(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Along which dim a matrix is divided, over which ranks; along a second axis of the mesh ranks hold copies."""

    mesh: DeviceMesh
    placements: tuple[Placement, ...]

    @property
    def is_row(self) -> bool:
        """Whether the inputs of the matrix are divided, so that ranks add up their outputs."""
        return self.placements[0] == ROW


@dataclass(frozen=True, slots=True)
class PartGradient:
    """A parameter that ranks hold whole, or a copy of, while each knows a part of its gradient."""

    owner: nn.Module
    name: str
    group: ProcessGroup
    """The ranks whose parts add up to the gradient."""


def divide_tensors(model: Decoder, mesh: Mesh) -> tuple[PartGradient, ...]:
    """Turn the meta parameters of a model into parts over tp and ep.

    Returns:
        The parameters whose gradients tp ranks have to add up.

    Raises:
        LayoutError: a head count or a width is no multiple of its degree.
    """
    divide_experts(model, mesh)
    if mesh.layout.tp == 1:
        return ()
    _require_divisible(model, mesh.layout.tp)
    column, row = column_parts(mesh), row_parts(mesh)
    heads = column_parts(mesh, most_parts=model.config.num_key_value_heads)
    for module in model.modules():
        if isinstance(module, Embedding | Head):
            divide_weight(module, "weight", column)
        elif isinstance(module, Attention):
            divide_linear(module.q_proj, column)
            divide_linear(module.k_proj, heads)
            divide_linear(module.v_proj, heads)
            divide_linear(module.o_proj, row)
        elif isinstance(module, FeedForward):
            divide_linear(module.gate_proj, column)
            divide_linear(module.up_proj, column)
            divide_linear(module.down_proj, row)
    model.tie()
    divided = [module for module in model.modules() if isinstance(module, Attention | FeedForward)]
    return tuple(part_gradients(model, divided, mesh))


def column_parts(mesh: Mesh, *, most_parts: int | None = None) -> Parts:
    """The outputs divided over tp; where there are more ranks than ``most_parts``, neighbours hold the same part."""
    tp, size = mesh.whole["tp"], mesh.layout.tp
    if most_parts is None or most_parts >= size:
        return Parts(mesh=tp, placements=(COLUMN,))
    axes = unflattened(tp, sizes=(most_parts, size // most_parts), names=("tp_parts", "tp_copies"))
    return Parts(mesh=axes, placements=(COLUMN, Replicate()))


def row_parts(mesh: Mesh) -> Parts:
    """The inputs divided over tp."""
    return Parts(mesh=mesh.whole["tp"], placements=(ROW,))


def part_gradients(model: nn.Module, divided: list[nn.Module], mesh: Mesh) -> Iterator[PartGradient]:
    """The parameters of which every tp rank knows a part of the gradient.

    What a module that tp divides holds whole serves only the heads or the width of its rank. Under sequence parallelism
    everything whole has seen a part of the tokens. Copies of key-value heads serve the query heads of their rank.

    Args:
        model: after it was divided.
        divided: its modules that tp divides: each enters and leaves the part of its rank.
        mesh: of the job.
    """
    everyone = mesh.group("tp")
    assert everyone is not None
    inside = {id(part) for module in divided for part in module.modules()}
    for module in model.modules():
        if isinstance(module, Experts) and not module.is_whole:
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(parameter, DTensor):
                if parameter.device_mesh.ndim > 1:
                    yield PartGradient(module, name, parameter.device_mesh.get_group(1))
            elif mesh.layout.sequence_parallel or id(module) in inside:
                yield PartGradient(module, name, everyone)


def divide_experts(model: nn.Module, mesh: Mesh) -> None:
    """Give every rank of the expert-parallel group its share of the experts."""
    if mesh.layout.ep == 1:
        return
    parts = Parts(mesh=mesh.experts, placements=(EXPERT,))
    for module in model.modules():
        if isinstance(module, Experts):
            divide_weight(module, "gate_up_proj", parts)
            divide_weight(module, "down_proj", parts)
            module.is_whole = False


def divide_linear(linear: Linear | QuantisedLinear, parts: Parts) -> None:
    """Divide a matrix, and the bias and the factor of an adapter that lie along the same dim.

    Raises:
        LayoutError: it is to be packed in 4 bits, and a rank's part of a row would be no whole number of blocks.
    """
    divide_weight(linear, "weight", parts)
    if isinstance(linear, QuantisedLinear) and parts.is_row:
        linear.own_in_features = linear.in_features // parts.mesh.size()
        linear.rows_group = parts.mesh.get_group()
        if linear.own_in_features % BLOCK:
            raise LayoutError(
                f"tp={parts.mesh.size()} divides {linear.in_features} inputs of a 4-bit matrix into parts that are no "
                f"multiple of {BLOCK}, the weights that share a scale",
                code="train-tensor-parts",
                fix="set tp lower, or adapter to lora",
            )
    if linear.bias is not None and parts.is_row:
        linear.bias_fraction = 1 / parts.mesh.size()
    elif linear.bias is not None:
        divide_weight(linear, "bias", parts)
    adapter = adapter_of(linear)
    if adapter is not None:
        # y = (W + B A) x is divided where W is: B along the outputs, or A along the inputs.
        first, second = adapter
        divide_weight(first if parts.is_row else second, "weight", parts)
        if parts.is_row:
            first.inputs = DividedInputs(num_parts=parts.mesh.size(), rank=int(parts.mesh.get_local_rank()))


def divide_weight(owner: nn.Module, name: str, parts: Parts) -> None:
    """The meta parameter ``name`` as a DTensor whose local part has the size of this rank's part."""
    whole, divided_along = getattr(owner, name), parts.placements[0]
    if isinstance(whole, DTensor) or not isinstance(divided_along, Shard):
        return
    part = whole.detach().chunk(parts.mesh.size(0), dim=divided_along.dim)[0].contiguous()
    divided = DTensor.from_local(
        part, parts.mesh, parts.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )
    owner.register_parameter(name, nn.Parameter(divided, requires_grad=whole.requires_grad))


def _require_divisible(model: Decoder, tp: int) -> None:
    config = model.config
    sizes = {
        "num_attention_heads": config.num_attention_heads,
        "vocab_size": config.vocab_size,
        "intermediate_size": config.intermediate_size,
    }
    if config.num_key_value_heads % tp and tp % config.num_key_value_heads:
        sizes["num_key_value_heads"] = config.num_key_value_heads
    for name, size in sizes.items():
        if size % tp:
            raise LayoutError(
                f"tp={tp} cannot divide {name}={size} into equal parts",
                code="train-tensor-parts",
                fix="set tp to a common divisor of the heads, the key-value heads, the vocabulary and the width",
            )
