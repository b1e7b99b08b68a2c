"""Tensor and expert parallelism: which weights are divided along which dim.

Parameters become DTensors, so that checkpoints know what a part is a part of; the blocks compute with local parts and
call their collectives themselves (``decoder/groups.py``).
"""

from collections.abc import Iterator

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard

from shardwise.errors import LayoutError
from shardwise.train.decoder.blocks import Attention, FeedForward, Linear, RmsNorm
from shardwise.train.decoder.experts import Experts, Router
from shardwise.train.decoder.model import Decoder, Embedding, Head
from shardwise.train.lora import DividedInputs, adapter_of
from shardwise.train.mesh import Mesh

COLUMN, ROW, EXPERT = Shard(0), Shard(1), Shard(0)


def divide_tensors(model: Decoder, mesh: Mesh) -> None:
    """Turn the meta parameters of a model into parts over tp and ep.

    Raises:
        LayoutError: a head count or a width is no multiple of its degree.
    """
    if mesh.layout.tp > 1:
        _require_divisible(model, mesh.layout.tp)
        for module in model.modules():
            _divide_matrices(module, mesh.whole["tp"])
        model.tie()
    if mesh.layout.ep > 1:
        for module in model.modules():
            if isinstance(module, Experts):
                _divide(module, "gate_up_proj", EXPERT, mesh.experts)
                _divide(module, "down_proj", EXPERT, mesh.experts)
                module.is_whole = False


def partly_trained(model: nn.Module, *, is_sequence_parallel: bool) -> list[nn.Module]:
    """Modules that every tp rank holds whole, but trains on a part of the tokens, the heads or a matrix."""
    modules = list(model.modules())
    parts: list[nn.Module | None] = []
    for module in modules:
        if isinstance(module, Attention):
            parts += [module.q_norm, module.k_norm]
            parts += [*_whole_factors((module.q_proj, module.k_proj, module.v_proj), COLUMN)]
            parts += [*_whole_factors((module.o_proj,), ROW)]
        elif isinstance(module, FeedForward):
            parts += [*_whole_factors((module.gate_proj, module.up_proj), COLUMN)]
            parts += [*_whole_factors((module.down_proj,), ROW)]
    found = [part for part in parts if part is not None]
    if is_sequence_parallel:
        found += [module for module in modules if isinstance(module, RmsNorm | Router) and module not in found]
        found += [module for module in modules if isinstance(module, Experts) and module.is_whole]
    return found


def _whole_factors(linears: tuple[nn.Module, ...], placement: Placement) -> Iterator[nn.Module]:
    """The factor of an adapter that is not divided."""
    for linear in linears:
        adapter = adapter_of(linear)
        if adapter is not None:
            yield adapter[0] if placement == COLUMN else adapter[1]


def _divide_matrices(module: nn.Module, mesh: DeviceMesh) -> None:
    if isinstance(module, Embedding | Head):
        _divide(module, "weight", COLUMN, mesh)
    elif isinstance(module, Attention):
        for column in (module.q_proj, module.k_proj, module.v_proj):
            _divide_linear(column, COLUMN, mesh)
        _divide_linear(module.o_proj, ROW, mesh)
    elif isinstance(module, FeedForward):
        _divide_linear(module.gate_proj, COLUMN, mesh)
        _divide_linear(module.up_proj, COLUMN, mesh)
        _divide_linear(module.down_proj, ROW, mesh)


def _divide_linear(linear: Linear, placement: Placement, mesh: DeviceMesh) -> None:
    _divide(linear, "weight", placement, mesh)
    if linear.bias is not None and placement == COLUMN:
        _divide(linear, "bias", placement, mesh)
    adapter = adapter_of(linear)
    if adapter is not None:
        # y = (W + B A) x is divided where W is: B along the outputs, or A along the inputs.
        first, second = adapter
        _divide(second if placement == COLUMN else first, "weight", placement, mesh)
        if placement == ROW:
            first.inputs = DividedInputs(num_parts=mesh.size(), rank=int(mesh.get_local_rank()))


def _divide(owner: nn.Module, name: str, placement: Placement, mesh: DeviceMesh) -> None:
    """The meta parameter ``name`` as a DTensor whose local part has the size of this rank's part."""
    whole = getattr(owner, name)
    if isinstance(whole, DTensor) or not isinstance(placement, Shard):
        return
    part = whole.detach().chunk(mesh.size(), dim=placement.dim)[0].contiguous()
    divided = DTensor.from_local(part, mesh, (placement,), run_check=False, shape=whole.shape, stride=whole.stride())
    owner.register_parameter(name, nn.Parameter(divided, requires_grad=whole.requires_grad))


def _require_divisible(model: Decoder, tp: int) -> None:
    config = model.config
    sizes = {
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "vocab_size": config.vocab_size,
        "intermediate_size": config.intermediate_size,
    }
    for name, size in sizes.items():
        if size % tp:
            raise LayoutError(
                f"tp={tp} cannot divide {name}={size} into equal parts",
                code="train-tensor-parts",
                fix="set tp to a common divisor of the heads, the key-value heads, the vocabulary and the width",
            )
