"""Tensor and expert parallelism inside models that transformers builds, by one list of weights for each family.

``shardwise.families`` says of every weight of a family how tensor parallelism divides it: by column, by row, by row of
the vocabulary, into at most so many parts, or not at all. Predictions count by that list, and this file divides by it.
A module with a row-parallel matrix, such as attention, takes the whole sequence in and gives the sum over ranks out.
Inside it the family's own code computes with the heads and the width of its rank.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shardwise.errors import LayoutError
from shardwise.families import read_model
from shardwise.model import Split, Weight
from shardwise.train.decoder.blocks import Linear
from shardwise.train.decoder.groups import BlockGroups
from shardwise.train.family_parts import DividedTable, FamilyExperts, is_no_mask
from shardwise.train.huggingface import TransformersDecoder
from shardwise.train.job import Job
from shardwise.train.mesh import Mesh
from shardwise.train.nf4 import QuantisedLinear
from shardwise.train.tensor_parallel import (
    PartGradient,
    column_parts,
    divide_experts,
    divide_linear,
    divide_weight,
    part_gradients,
    row_parts,
)

__all__ = ["divide_family", "make_divisible", "require_plain_head"]

HIDDEN, MASK = "hidden_states", "attention_mask"
"""Arguments of attention, where a family gives them by name."""


def make_divisible(decoder: TransformersDecoder, job: Job) -> None:
    """Put modules that compute with parts of their weights in the place of those that the layout divides.

    Before adapters stand beside matrices, and before matrices are packed.

    Raises:
        LayoutError: the head of the model does more than one product.
    """
    if job.layout.tp == job.layout.ep == 1:
        return
    require_plain_head(decoder, job)
    for block, weights in _blocks(decoder, job):
        if job.layout.ep > 1:
            for name in sorted({name.rpartition(".")[0] for name, weight in weights.items() if weight.is_expert}):
                _replace(block, name, FamilyExperts(block.get_submodule(name)))
        matrices = [*_matrices(weights, "column"), *_matrices(weights, "row")] if job.layout.tp > 1 else []
        for name in matrices:
            _replace(block, name, _own_linear(block.get_submodule(name)))
    if job.layout.tp > 1:
        table = decoder.whole[0].get_input_embeddings()
        _replace(
            decoder, next(name for name, module in decoder.named_modules() if module is table), DividedTable(table)
        )


def require_plain_head(decoder: TransformersDecoder, job: Job) -> None:
    """Return when ranks may divide the vocabulary, if the layout divides it.

    Raises:
        LayoutError: logits are not just hidden states times a matrix, but capped or scaled, say.
    """
    if job.layout.tp > 1 and decoder.loss_head is None:
        raise LayoutError(
            f"tp={job.layout.tp} divides the vocabulary, but {job.model_config['model_type']} of this config does more "
            "to its logits than a product with the head",
            code="train-transformers-layout",
            fix="set tp to 1 and dp_shard as many times larger",
        )


def divide_family(decoder: TransformersDecoder, job: Job, mesh: Mesh, groups: BlockGroups) -> tuple[PartGradient, ...]:
    """Divide the meta parameters of a model over tp and ep, and let its modules work in their groups.

    Returns:
        The parameters whose gradients tp ranks have to add up.
    """
    if mesh.layout.tp == mesh.layout.ep == 1:
        return ()
    divide_experts(decoder, mesh)
    decoder.join(groups)
    if mesh.layout.tp == 1:
        return ()
    divided: list[nn.Module] = []
    for block, weights in _blocks(decoder, job):
        divided += _divide_block(block, weights, mesh, groups)
    _divide_vocabulary(decoder, mesh)
    return tuple(part_gradients(decoder, divided, mesh))


def _divide_block(
    block: nn.Module, weights: Mapping[str, Weight], mesh: Mesh, groups: BlockGroups
) -> Iterator[nn.Module]:
    """The modules of a block that were divided."""
    for name in _matrices(weights, "column"):
        limit = weights[name].split_limit
        divide_linear(_linear(block, name), column_parts(mesh, most_parts=limit))
        around = block.get_submodule(name.rpartition(".")[0])
        if limit is not None and limit < mesh.layout.tp:
            _serve_fewer_heads(around, num_copies=mesh.layout.tp // limit)
    for name in _matrices(weights, "row"):
        matrix, around = _linear(block, name), block.get_submodule(name.rpartition(".")[0])
        divide_linear(matrix, row_parts(mesh))
        matrix.register_forward_hook(_leaves(groups))  # behind the hook that adds an adapter's product
        around.register_forward_pre_hook(_enters(groups), with_kwargs=True)
        yield around


def _serve_fewer_heads(attention: nn.Module, *, num_copies: int) -> None:
    """Tell an attention with a copy of a key-value head how few query heads it serves on this rank.

    The number follows from the config, so that it is the same for the key matrix and for the value matrix.
    """
    config: Any = attention.config
    attention.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads // num_copies


def _divide_vocabulary(decoder: TransformersDecoder, mesh: Mesh) -> None:
    """Divide table and head by row; one matrix stays one."""
    (table,) = (module for module in decoder.modules() if isinstance(module, DividedTable))
    head = decoder.loss_head
    assert head is not None
    is_tied = head.weight is table.weight
    divide_weight(table, "weight", column_parts(mesh))
    if is_tied:
        head.weight = table.weight
    divide_weight(head, "weight", column_parts(mesh))


def _enters(groups: BlockGroups) -> Callable[[nn.Module, Any, dict[str, Any]], tuple[Any, dict[str, Any]]]:
    def enter(_module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if is_no_mask(named.get(MASK)):
            named = {**named, MASK: None}
        if given:
            return (groups.enter(given[0]), *given[1:]), named
        return given, {**named, HIDDEN: groups.enter(named[HIDDEN])}

    return enter


def _leaves(groups: BlockGroups) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    def leave(_module: nn.Module, _given: Any, output: Tensor) -> Tensor:
        return groups.leave(output)

    return leave


def _blocks(decoder: TransformersDecoder, job: Job) -> Iterator[tuple[nn.Module, dict[str, Weight]]]:
    """Every block with what its family says of its weights, by the names of the modules that hold them."""
    layers = read_model(job.model_config).layers
    for block, layer in zip(decoder.blocks(), layers, strict=True):
        yield block, {weight.name.removesuffix(".weight"): weight for weight in layer.weights}


def _matrices(weights: Mapping[str, Weight], split: Split) -> list[str]:
    """Names of the modules with a matrix that is divided so; stacked experts are not among them."""
    is_wanted = (w.split == split and w.role == "matrix" and not w.is_expert for w in weights.values())
    return [name for name, wanted in zip(weights, is_wanted, strict=True) if wanted]


def _own_linear(family: nn.Module) -> Linear:
    """A linear layer of ours with the parameters of a family's."""
    weight = family.get_parameter("weight")
    with torch.device("meta"):
        linear = Linear(weight.size(1), weight.size(0))
    linear.weight, linear.bias = weight, dict(family.named_parameters()).get("bias")
    return linear


def _linear(block: nn.Module, name: str) -> Linear | QuantisedLinear:
    found = block.get_submodule(name)
    assert isinstance(found, Linear | QuantisedLinear)
    return found


def _replace(root: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, leaf = name.rpartition(".")
    setattr(root.get_submodule(owner), leaf, module)
