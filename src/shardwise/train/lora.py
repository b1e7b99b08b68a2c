"""Low-rank adapters: frozen matrices of a block, each with two small trained ones beside it.

``y = W x + (alpha / rank) B A dropout(x)``, with A ``(rank, in)`` and B ``(out, rank)``; B starts at zero, so training
starts from the base model. Validation drops nothing. Adapters stand under the names that peft gives them (``lora_A``,
``lora_B``).

Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  (the field's name for it)
from torch import Tensor, nn

from shardwise.errors import RecipeError
from shardwise.recipe import LoraTargets, Precision, Recipe
from shardwise.step.held_weights import is_target
from shardwise.train.decoder.blocks import Linear
from shardwise.train.decoder.groups import local
from shardwise.train.decoder.model import Decoder
from shardwise.train.huggingface import TransformersDecoder
from shardwise.train.nf4 import QuantisedLinear, quantise_blocks
from shardwise.train.parameters import plain_name

FIRST, SECOND = "lora_A", "lora_B"
TRANSPOSED = "Conv1D"
"""GPT-2's layer of transformers, whose weight is ``(in, out)``."""
FROZEN_DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "bf16-mixed": torch.bfloat16,
    "fp16-mixed": torch.float16,
    "fp8-mixed": torch.bfloat16,
}
"""Dtype of frozen base weights by precision: weights that are never updated need no fp32 copy."""


@dataclass(frozen=True, slots=True)
class DividedInputs:
    """Which part of its inputs a rank holds."""

    num_parts: int = 1
    rank: int = 0


class Factor(Linear):
    """One of an adapter's two factors, A or B."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.inputs = DividedInputs()


def add_adapters(decoder: Decoder | TransformersDecoder, recipe: Recipe) -> None:
    """Freeze the decoder and put adapters beside the matrices that the recipe names.

    Args:
        decoder: on the meta device.
        recipe: its rank, targets, dropout, and what the adapters' product is multiplied with.

    Raises:
        RecipeError: no matrix has such a name.
    """
    trained_dtype = next(decoder.parameters()).dtype
    _freeze(decoder, FROZEN_DTYPES[recipe.precision])
    if recipe.adapter == "qlora":
        quantise_blocks(list(decoder.blocks()), (Linear, nn.Linear))
        _require_quantised(decoder)
    targets = [module for block in decoder.blocks() for module in _targets(block, recipe.lora_targets)]
    if not targets:
        raise RecipeError(
            f"lora_targets={recipe.lora_targets} names no matrix of this model, so nothing would train",
            code="recipe-lora-targets",
            fix="set lora_targets to all-linear",
        )
    for module in targets:
        in_features, out_features = _sizes(module)
        module.add_module(FIRST, _factor(in_features, recipe.lora_rank, trained_dtype))
        module.add_module(SECOND, _factor(recipe.lora_rank, out_features, trained_dtype))
        module.register_forward_hook(_adds_product(recipe.adapter_scale_ratio, recipe.lora_dropout_fraction))


def _require_quantised(decoder: Decoder | TransformersDecoder) -> None:
    """Return when every matrix of the blocks is one that will be packed.

    Raises:
        RecipeError: one would stay as it is, and the run would be LoRA under the name of QLoRA.
    """
    for block in decoder.blocks():
        for name, module in block.named_modules():
            if is_matrix(module) and not isinstance(module, QuantisedLinear):
                raise RecipeError(
                    f"{name} of a block is a {type(module).__name__}, whose matrix cannot be kept in 4 bits here",
                    code="recipe-adapter-matrices",
                    fix="set adapter to lora",
                )


def _factor(in_features: int, out_features: int, dtype: torch.dtype) -> Factor:
    with torch.device("meta"):
        factor = Factor(in_features, out_features)
        factor.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype))
    return factor


def _freeze(decoder: nn.Module, dtype: torch.dtype) -> None:
    """Every parameter as one that is not trained, in its dtype; matrices that were one stay one."""
    frozen: dict[int, nn.Parameter] = {}
    for module in decoder.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            made = frozen.get(id(parameter))
            if made is None:
                made = frozen[id(parameter)] = nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
                frozen[id(made)] = made
            setattr(module, name, made)


def adapter_of(module: nn.Module) -> tuple[Factor, Factor] | None:
    """A and B beside a matrix; ``None`` where there are none."""
    children = dict(module.named_children())
    first, second = children.get(FIRST), children.get(SECOND)
    return (first, second) if isinstance(first, Factor) and isinstance(second, Factor) else None


def target_names(decoders: tuple[Decoder | TransformersDecoder, ...]) -> tuple[str, ...]:
    """Ends of the names of all adapted matrices, as peft's ``target_modules`` wants them.

    The last part serves where no matrix beside them has it too; elsewhere it is the path within the block.
    """
    modules = [pair for d in decoders for block in d.blocks() for pair in block.named_modules() if is_matrix(pair[1])]
    adapted = {plain_name(name) for name, module in modules if adapter_of(module)}
    others = {plain_name(name).rpartition(".")[2] for name, _ in modules if plain_name(name) not in adapted}
    lasts = {name: name.rpartition(".")[2] for name in adapted}
    return tuple(sorted({name if last in others else last for name, last in lasts.items()}))


def transposed_names(decoders: tuple[nn.Module, ...]) -> frozenset[str]:
    """Names of the adapted matrices that are stored as ``(in, out)``."""
    named = (pair for decoder in decoders for pair in decoder.named_modules())
    return frozenset(plain_name(name) for name, one in named if adapter_of(one) and type(one).__name__ == TRANSPOSED)


def is_matrix(module: nn.Module) -> bool:
    """Whether a module is one product with a stored matrix; routers and stacked experts are not."""
    return isinstance(module, Linear | nn.Linear | QuantisedLinear) or type(module).__name__ == TRANSPOSED


def _targets(block: nn.Module, targets: LoraTargets) -> Iterator[nn.Module]:
    for name, module in block.named_modules():
        if is_matrix(module) and is_target(name, targets):
            yield module


def _sizes(module: nn.Module) -> tuple[int, int]:
    """Features a matrix takes and gives."""
    if isinstance(module, QuantisedLinear):
        return module.in_features, module.out_features
    rows, columns = module.get_parameter("weight").shape
    return (rows, columns) if type(module).__name__ == TRANSPOSED else (columns, rows)


def _adds_product(scale_ratio: float, dropout_fraction: float) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    def add_product(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        first, second = (module.get_submodule(name) for name in (FIRST, SECOND))
        assert isinstance(first, Factor)
        drops = dropout_fraction > 0 and module.training
        x = _dropped(inputs[0], dropout_fraction, first.inputs) if drops else inputs[0]
        # The few features between A and B are scaled: backward then makes no scaled copy of a gradient as wide as B's.
        narrow = scale_ratio * F.linear(x, _as(first.weight, x))
        return output + F.linear(narrow, _as(second.get_parameter("weight"), x))

    return add_product


def _dropped(x: Tensor, dropout_fraction: float, inputs: DividedInputs) -> Tensor:
    """The inputs after dropout.

    Ranks that hold parts of ``x`` all draw the mask of the whole, and each takes its own part: their generators then
    go on alike, as one rank's alone would.
    """
    if inputs.num_parts == 1:
        return F.dropout(x, dropout_fraction)
    whole = x.new_ones((*x.shape[:-1], inputs.num_parts * x.size(-1)))
    is_kept = F.dropout(whole, dropout_fraction).chunk(inputs.num_parts, dim=-1)[inputs.rank] != 0
    return x * is_kept / (1 - dropout_fraction)


def _as(weight: Tensor, x: Tensor) -> Tensor:
    """This rank's part of a factor in the dtype of what it is multiplied with; FSDP2 has cast it before."""
    return local(weight).to(x.dtype)
