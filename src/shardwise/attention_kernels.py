"""One record for each kernel that computes attention: which parts run it, and what it cannot do."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

AttentionKernel = Literal["fa2", "fa3", "fa4", "cudnn", "efficient", "math", "flex"]

DATACENTER_BLACKWELL = ("Blackwell GB100", "Blackwell Ultra")
"""Compute capability 10.0 and 10.3."""
SINCE_AMPERE = ("Ampere", "Ada", "Hopper", "Blackwell")
"""Compute capability 8.0 and more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionKernelKind:
    """One kernel."""

    title: str
    """Its name as people write it."""
    archs: tuple[str, ...] = ()
    """Beginnings of the names of architectures that run it; empty where all do but those of ``never_on``."""
    never_on: tuple[str, ...] = ()
    """Beginnings of the names of architectures that do not run it."""
    has_dropout: bool = True
    """Whether it can drop probabilities out."""
    source: str

    def runs_on(self, arch: str) -> bool:
        """Whether parts of an architecture run it.

        >>> ATTENTION_KERNELS["fa3"].runs_on("Hopper GH100"), ATTENTION_KERNELS["fa2"].runs_on("Volta")
        (True, False)
        """
        return arch.startswith(self.archs or "") and not (self.never_on and arch.startswith(self.never_on))


ATTENTION_KERNELS: Mapping[AttentionKernel, AttentionKernelKind] = MappingProxyType(
    {
        # ROCm, Gaudi, TPU and processors have kernels of their own that work in the same tiles.
        "fa2": AttentionKernelKind(
            title="FlashAttention-2",
            never_on=("Volta", "Turing"),
            source="pytorch/pytorch@001f694 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (sm80 and newer)",
        ),
        "fa3": AttentionKernelKind(
            title="FlashAttention-3",
            archs=("Hopper",),
            has_dropout=False,
            source="Dao-AILab/flash-attention README.md (H100 and H800), hopper/flash_attn_interface.py",
        ),
        "fa4": AttentionKernelKind(
            title="FlashAttention-4",
            archs=("Hopper", *DATACENTER_BLACKWELL),
            has_dropout=False,
            source="pypi.org/project/flash-attn-4 (Hopper and Blackwell); huggingface/transformers#42404 (no dropout)",
        ),
        "cudnn": AttentionKernelKind(
            title="cuDNN",
            archs=SINCE_AMPERE,
            source="pytorch/pytorch@001f694 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (sm80 and newer)",
        ),
        "efficient": AttentionKernelKind(
            title="memory-efficient attention",
            archs=("Volta", "Turing", *SINCE_AMPERE, "CDNA"),
            source="pytorch/pytorch@001f694 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (sm50 and newer)",
        ),
        "math": AttentionKernelKind(
            title="written-out scores", source="torch nn/attention/__init__.py (SDPBackend.MATH)"
        ),
        # Triton writes it, which needs compute capability 7.0; on processors it has no backward pass.
        "flex": AttentionKernelKind(
            title="FlexAttention",
            archs=("Volta", "Turing", *SINCE_AMPERE, "CDNA"),
            has_dropout=False,
            source="torch 2.13 nn/attention/flex_attention.py (signature, _validate_device)",
        ),
    }
)
