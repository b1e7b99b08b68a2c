"""Adapters added to the weights that they were trained beside: a whole Hugging Face checkpoint, file by file."""

import shutil
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from shardwise.errors import CheckpointError
from shardwise.train.pretrained.companions import Companions
from shardwise.train.pretrained.export import unfinished_export
from shardwise.train.pretrained.files import INDEX, base_name, files_by_tensor

__all__ = ["export_merged"]

FIRST, SECOND, WEIGHT = ".lora_A.weight", ".lora_B.weight", ".weight"
KEPT_FILES = ("config.json", INDEX)
"""Files of the base that say what the merged model is and in which files it lies."""


def export_merged(
    factors: Mapping[str, torch.Tensor],
    base: Path,
    folder: Path,
    *,
    scale_ratio: float,
    transposed: Collection[str] = (),
    companions: Companions | None = None,
) -> tuple[Path, ...]:
    """Write the base model with ``scale B A`` added to every adapted matrix, in the types and files of the base.

    Args:
        factors: A and B of every adapted matrix by parameter name, as a checkpoint of adapters holds them.
        base: a Hugging Face checkpoint; memory holds one of its files at a time.
        folder: does not exist yet.
        scale_ratio: what the product of the factors is multiplied with.
        transposed: names of adapted modules whose matrix is stored as ``(in, out)``.
        companions: where the tokenizer and the settings of generation lie that go along.

    Returns:
        The files with weights.

    Raises:
        CheckpointError: the folder exists, or the base lacks a matrix that has an adapter.
    """
    if folder.exists():
        raise CheckpointError(f"{folder} exists already", code="output-exists", fix="choose another folder")
    places = files_by_tensor(base)
    adapted = [name.removesuffix(FIRST) for name in factors if name.endswith(FIRST)]
    found = {base_name(f"{module}{WEIGHT}", places): module for module in adapted}
    paths = sorted(set(places.values()))
    with unfinished_export(folder, needed_bytes=sum(path.stat().st_size for path in paths)) as unfinished:
        for path in paths:
            tensors = load_file(path)
            for name in tensors.keys() & found.keys():
                module = found[name]
                product = factors[f"{module}{SECOND}"].float() @ factors[f"{module}{FIRST}"].float()
                change = scale_ratio * (product.T if module in transposed else product)
                tensors[name] = (tensors[name].float() + change).to(tensors[name].dtype).contiguous()
            save_file(tensors, unfinished / path.name, metadata={"format": "pt"})
        for path in (base / name for name in KEPT_FILES):
            if path.is_file():
                shutil.copy2(path, unfinished / path.name)
        if companions is not None:
            companions.copy_to(unfinished)
    return tuple(sorted(folder.glob("*.safetensors")))
