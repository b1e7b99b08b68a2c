"""One record for each kernel that computes attention: which parts run it, and what it cannot do."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

AttentionKernel = Literal["fa1", "fa2", "fa3", "fa4", "cudnn", "efficient", "math", "flex"]

DATACENTER_BLACKWELL = ("Blackwell GB100", "Blackwell Ultra")
"""Compute capability 10.0 and 10.3."""
SINCE_AMPERE = ("Ampere", "Ada", "Hopper", "Blackwell")
"""Compute capability 8.0 and more."""
SDPA_ARCHS = ("Volta", "Turing", *SINCE_AMPERE, "CDNA")
"""Beginnings of the names of architectures on which torch chooses among kernels; others have one of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """The attention of one plan as a kernel sees it: part, heads, precision and dropout."""

    arch: str
    head_dim: int = 128
    """Elements of a query and of a key."""
    v_head_dim: int = 128
    """Elements of a value."""
    is_16_bit: bool = True
    """Whether queries, keys and values are in fp16 or bf16; otherwise they are in fp32."""
    dropout_fraction: float = 0.0


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
    smallest_dropout_fraction: float | None = None
    """The probability has to be a whole multiple of this one; ``None`` where any will do."""
    is_16_bit_only: bool = True
    """Whether it refuses fp32."""
    max_head_dim: int | None = None
    """Most elements of a head; ``None`` where torch states no limit."""
    latent_archs: tuple[str, ...] | None = None
    """Beginnings of the names of architectures on which values may be narrower than queries (192 and 128, as in MLA);
    ``None`` where they may everywhere."""
    source: str

    def runs_on(self, arch: str) -> bool:
        """Whether parts of an architecture run it.

        >>> ATTENTION_KERNELS["fa3"].runs_on("Hopper GH100"), ATTENTION_KERNELS["fa2"].runs_on("Volta")
        (True, False)
        """
        return arch.startswith(self.archs or "") and not (self.never_on and arch.startswith(self.never_on))

    def computes(self, call: AttentionCall) -> bool:
        """Whether the kernel runs on the call's architecture and takes its heads, precision and dropout.

        >>> ATTENTION_KERNELS["cudnn"].computes(AttentionCall(arch="Hopper GH100", head_dim=256, v_head_dim=256))
        False
        """
        if not self.runs_on(call.arch):
            return False
        if not call.arch.startswith(SDPA_ARCHS):
            return True
        return (call.is_16_bit or not self.is_16_bit_only) and self._takes_heads(call) and self.drops_out(call)

    def _takes_heads(self, call: AttentionCall) -> bool:
        if call.head_dim != call.v_head_dim:
            return self.latent_archs is None or call.arch.startswith(self.latent_archs)
        return self.max_head_dim is None or call.head_dim <= self.max_head_dim

    def drops_out(self, call: AttentionCall) -> bool:
        """Whether the kernel takes the call's probability of dropout."""
        if not call.dropout_fraction:
            return True
        smallest = self.smallest_dropout_fraction
        return self.has_dropout and (smallest is None or (call.dropout_fraction / smallest).is_integer())


ATTENTION_KERNELS: Mapping[AttentionKernel, AttentionKernelKind] = MappingProxyType(
    {
        "fa1": AttentionKernelKind(
            title="FlashAttention-1",
            archs=("Turing", *SINCE_AMPERE),
            max_head_dim=128,
            latent_archs=(),
            source="Dao-AILab/flash-attention v1.0 README.md (Turing, Ampere, Ada, Hopper; 16 bits; heads up to 128)",
        ),
        # ROCm, Gaudi, TPU and CPUs have kernels of their own that work in the same tiles.
        "fa2": AttentionKernelKind(
            title="FlashAttention-2",
            never_on=("Volta", "Turing"),
            max_head_dim=256,
            latent_archs=(),
            source="pytorch/pytorch@001f694 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp "
            "(can_use_flash_attention: sm80 and newer, 16 bits, heads of equal size up to 256)",
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
            smallest_dropout_fraction=1 / 16,
            max_head_dim=128,
            latent_archs=("Hopper", *DATACENTER_BLACKWELL),
            source="pytorch/pytorch@001f694 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp "
            "(can_use_cudnn_attention: sm80 and newer, 16 bits, dropout in sixteenths, heads up to 128 with cuDNN "
            "before 9.22, 192 with values of 128 on sm90 and sm100)",
        ),
        "efficient": AttentionKernelKind(
            title="memory-efficient attention",
            archs=SDPA_ARCHS,
            is_16_bit_only=False,
            source="pytorch/pytorch@001f694 aten/src/ATen/native/transformers/cuda/sdp_utils.cpp "
            "(can_use_mem_efficient_attention: sm50 and newer)",
        ),
        "math": AttentionKernelKind(
            title="written-out scores", is_16_bit_only=False, source="torch nn/attention/__init__.py (SDPBackend.MATH)"
        ),
        # Triton writes it, which needs compute capability 7.0; on CPUs it has no backward pass.
        "flex": AttentionKernelKind(
            title="FlexAttention",
            archs=SDPA_ARCHS,
            has_dropout=False,
            is_16_bit_only=False,
            source="torch 2.13 nn/attention/flex_attention.py (signature, _validate_device)",
        ),
    }
)
