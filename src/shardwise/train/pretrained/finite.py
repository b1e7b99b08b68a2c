"""Whether the weights a run began with are numbers; asked when its first loss is none, as it reads every file."""

from pathlib import Path

import torch
from safetensors import safe_open

from shardwise.errors import CheckpointError
from shardwise.train.pretrained.files import files_by_tensor

__all__ = ["require_finite"]


def require_finite(folder: Path) -> None:
    """Return when every tensor of a Hugging Face checkpoint holds numbers and no infinities.

    Raises:
        CheckpointError: names the first tensor that does not, and its file; so training was not what went wrong.
    """
    for name, path in files_by_tensor(folder).items():
        with safe_open(path, framework="pt") as file:
            tensor = file.get_tensor(name)
        if not tensor.is_floating_point():
            continue
        num_bad = tensor.numel() - int(torch.isfinite(tensor.float()).sum())
        if num_bad:
            raise CheckpointError(
                f"the weights were broken before any training: {num_bad:,} of {tensor.numel():,} values of {name} "
                f"in {path} are infinite or NaN",
                code="pretrained-not-finite",
                fix="copy the file again, or save the model again where it was made; no learning rate mends it",
            )
