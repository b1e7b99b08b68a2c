"""Which kernels torch may choose: the fastest attention first, TF32 never unless a job asks for it."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn.attention import SDPBackend, sdpa_kernel

ATTENTION_ORDER = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""cuDNN's kernel is the fastest on Hopper; flash serves where it cannot; the last two where neither can (fp32, CPU)."""


@contextmanager
def use_fast_kernels(*, is_deterministic: bool = False) -> Iterator[None]:
    """Attention kernels in order of speed, inside and outside compiled blocks.

    cuDNN adds up gradients in any order.
    """
    order = [kernel for kernel in ATTENTION_ORDER if kernel != SDPBackend.CUDNN_ATTENTION or not is_deterministic]
    with sdpa_kernel(order, set_priority=True):
        yield
