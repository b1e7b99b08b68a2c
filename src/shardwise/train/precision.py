"""Which kernels torch may choose: the fastest attention first, TF32 never unless a job asks for it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from shardwise.attention_kernels import AttentionKernel

ATTENTION_ORDER = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""cuDNN's kernel is the fastest on Hopper; flash serves where it cannot; the last two where neither can (fp32, CPU)."""
BACKENDS: Mapping[AttentionKernel, SDPBackend] = {
    "fa2": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
"""Kernels that torch offers by name, which is how a recipe may ask for one."""
CUDNN_CAPABILITIES = (9, 10)
"""Major compute capabilities on which cuDNN comes first: it is slower than FlashAttention-2 on others
(huggingface/transformers#48163), which torch prefers there too."""


@contextmanager
def use_fast_kernels(*, asked: AttentionKernel | None = None, is_deterministic: bool = False) -> Iterator[None]:
    """Attention kernels in order of speed, inside and outside compiled blocks; the one that is asked for alone.

    cuDNN adds up gradients in any order.
    """
    with sdpa_kernel(_order(asked, is_deterministic=is_deterministic), set_priority=True):
        yield


def _order(asked: AttentionKernel | None, *, is_deterministic: bool) -> list[SDPBackend]:
    if asked is not None:
        return [BACKENDS[asked]]
    others = [kernel for kernel in ATTENTION_ORDER if kernel != SDPBackend.CUDNN_ATTENTION]
    if is_deterministic:
        return others
    has_gpu = torch.cuda.is_available()
    if has_gpu and torch.cuda.get_device_capability()[0] not in CUDNN_CAPABILITIES:
        return [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, *others[1:]]
    return ATTENTION_ORDER
