"""What a parameter is to the module that owns it: who decays, and which matrices Muon makes orthogonal.

Names do not say: the norms of GPT-2 are ``ln_1``, and the state matrix of Mamba is two-dimensional.
"""

from typing import Literal

from torch import Tensor, nn

from shardwise.train.decoder.blocks import Linear
from shardwise.train.decoder.experts import Experts
from shardwise.train.decoder.model import Embedding, Head
from shardwise.train.family_parts import DividedTable

__all__ = ["ParameterKind", "kind_of"]

ParameterKind = Literal["matrix", "table", "kernel", "scale"]
"""``matrix`` multiplies vectors (alone or as a stack of experts), ``table`` is an embedding or the head of our decoder,
``kernel`` is a convolution or another tensor of several dims, ``scale`` scales or shifts numbers one by one.

Scales do not decay. Muon updates the matrices of blocks."""
TABLES = (nn.Embedding, Embedding, Head, DividedTable)
KERNELS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
STATE_SPACE = ("A_log", "D")
"""How fast a state-space model forgets, and what it lets through unchanged, whatever their number of dims. Source: Gu
and Dao 2023, github.com/state-spaces/mamba, ``mamba_simple.py``, which marks both as not decaying."""
NO_DECAY_MARK = "_no_weight_decay"
"""The mark that authors of models write on parameters that are not to decay."""


def kind_of(owner: nn.Module, name: str, parameter: Tensor) -> ParameterKind:
    """The kind of the parameter that a module holds under ``name``, whole or as this rank's part of it."""
    if "bias" in name or "scale" in name or name in STATE_SPACE:
        return "scale"
    if isinstance(owner, TABLES):
        return "table"
    if isinstance(owner, nn.Linear | Linear):
        return "matrix"
    if is_norm(owner) or parameter.numel() == max(parameter.shape, default=1):
        return "scale"
    is_stack = isinstance(owner, Experts) or "Expert" in type(owner).__name__
    is_kernel = isinstance(owner, KERNELS) or parameter.dim() != (3 if is_stack else 2)
    return "kernel" if is_kernel else "matrix"


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises; families of transformers have classes of their own, whose names say it."""
    return any("Norm" in base.__name__ for base in type(module).__mro__)


def is_marked(parameter: Tensor) -> bool:
    """Whether its model says that the parameter does not decay."""
    return bool(getattr(parameter, NO_DECAY_MARK, False))
