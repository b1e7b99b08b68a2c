"""Weights from the seed and their name alone, so that every layout starts from the same model.

A model is built on the meta device; each unit is filled just before it is sharded, so that no rank ever holds more
than one whole unit. This file fills what we wrote, decoder and adapters; ``family_initialise.py`` fills models that
transformers builds.
"""

import zlib

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from shardwise.train.decoder.model import Embedding, Head


def initialise(module: nn.Module, *, prefix: str, device: torch.device, seed: int, std: float) -> None:
    """Replace every meta parameter in ``module`` by this rank's part of its initial value.

    Args:
        module: a unit of the model; parameters that are not on the meta device are left alone.
        prefix: its name in the whole model, so that a weight's name does not depend on the pipeline.
        device: where the values go.
        seed: of the run.
        std: standard deviation of matrices; norms start at one and biases at zero.
    """
    filled: dict[int, nn.Parameter] = {}
    for owner_name, owner in module.named_modules():
        generator = torch.Generator(device)
        own = [(name, parameter) for name, parameter in owner.named_parameters(recurse=False) if parameter.is_meta]
        for index, (name, parameter) in enumerate(own):
            full_name = ".".join(part for part in (prefix, owner_name, name) if part)
            if index == 0:
                generator.manual_seed(seed_of(seed, full_name))
            if id(parameter) not in filled:
                whole = _initial_value(full_name, parameter, generator=generator, std=std)
                if isinstance(owner, Embedding | Head) and owner.padding_row is not None:
                    whole[owner.padding_row].zero_()
                own = placed(whole, parameter)
                filled[id(parameter)] = nn.Parameter(own, requires_grad=parameter.requires_grad)
            setattr(owner, name, filled[id(parameter)])


def seed_of(seed: int, name: str) -> int:
    """The seed of what draws from one stream: all parameters of a module, named by its first one."""
    return (seed * 2_147_483_647 + zlib.crc32(name.encode())) % 2**64


def _initial_value(name: str, parameter: Tensor, *, generator: torch.Generator, std: float) -> Tensor:
    whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=generator.device)
    if name.endswith(("bias", "lora_B.weight")):
        return whole.zero_()
    if parameter.dim() == 1:
        return whole.fill_(1)
    if name.endswith("lora_A.weight"):
        # As peft: Kaiming's uniform with a = sqrt(5).
        bound = parameter.size(-1) ** -0.5
        return whole.uniform_(-bound, bound, generator=generator)
    return whole.normal_(std=std, generator=generator)


def placed(whole: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of a value, placed as the parameter is."""
    if not isinstance(parameter, DTensor):
        return whole
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
