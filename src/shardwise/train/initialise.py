"""Weights from the seed and their name alone, so that every layout starts from the same model.

A model is built on the meta device; each unit is filled just before it is sharded, so that no rank ever holds more
than one whole unit.
"""

import zlib

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


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
        for name, parameter in list(owner.named_parameters(recurse=False)):
            if not parameter.is_meta:
                continue
            if id(parameter) not in filled:
                full_name = ".".join(part for part in (prefix, owner_name, name) if part)
                value = _initial_value(full_name, parameter, device=device, seed=seed, std=std)
                filled[id(parameter)] = nn.Parameter(value, requires_grad=parameter.requires_grad)
            setattr(owner, name, filled[id(parameter)])


def _initial_value(name: str, parameter: Tensor, *, device: torch.device, seed: int, std: float) -> Tensor:
    if name.endswith(("bias", "lora_B.weight")):
        whole = torch.zeros(parameter.shape, dtype=parameter.dtype, device=device)
    elif parameter.dim() == 1:
        whole = torch.ones(parameter.shape, dtype=parameter.dtype, device=device)
    else:
        generator = torch.Generator(device).manual_seed(seed * 2_147_483_647 + zlib.crc32(name.encode()))
        whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
        if name.endswith("lora_A.weight"):
            # As peft: Kaiming's uniform with a = sqrt(5).
            bound = parameter.size(-1) ** -0.5
            return _placed(whole.uniform_(-bound, bound, generator=generator), parameter)
        whole.normal_(std=std, generator=generator)
    return _placed(whole, parameter)


def _placed(whole: Tensor, parameter: Tensor) -> Tensor:
    """This rank's part of a value, placed as the parameter is."""
    if not isinstance(parameter, DTensor):
        return whole
    return distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
