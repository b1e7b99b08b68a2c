"""Tensor and expert parallelism: which weights are divided along which dim.

Parameters become DTensors, so that checkpoints know what a part is a part of; the blocks compute with local parts and
call their collectives themselves (``decoder/groups.py``).
"""

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard

from shardwise.errors import LayoutError
from shardwise.train.decoder.blocks import Attention, FeedForward, Linear
from shardwise.train.decoder.experts import Experts
from shardwise.train.decoder.model import Decoder, Embedding, Head
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
