"""What a kernel does, by its name: the tables of names that libraries give their kernels.

Sources: NVIDIA/nccl ``src/device/generate.py`` (``ncclDevKernel_AllReduce_Sum_bf16_RING_LL`` since 2.19) and its older
``src/collectives/device`` (``ncclKernel_AllReduce_RING_LL_Sum_float``); ROCm/rccl, which keeps NCCL's names; torch
``csrc/distributed/c10d`` (``record_param_comms`` and the ``nccl:`` and ``gloo:`` ranges); cuBLAS, cuDNN, CUTLASS,
FlashAttention, Triton and hipBLASLt kernels as they appear in public traces.
"""

import re
from functools import lru_cache
from typing import Literal

from shardwise.step.inventory import CollectiveKind

KernelFamily = Literal["communication", "gemm", "attention", "memory_bound", "other"]

COLLECTIVE_WORDS: tuple[tuple[str, CollectiveKind], ...] = (
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("sendrecv", "send_recv"),
    ("send", "send_recv"),
    ("recv", "send_recv"),
    ("dispatch", "all_to_all"),
    ("combine", "all_to_all"),
    ("barrier", "all_reduce"),
    ("reduce", "all_reduce"),
)
"""The first word that a name contains decides; the longer ones stand before those that they contain."""

COMMUNICATION = re.compile(
    r"nccl(dev)?kernel|rccl|^gloo:|^nccl:|nvshmem|deep_ep::|multimem_all|(one|two)_shot_all_reduce|symm_mem|"
    r"ncclsymk|mscclkernel|oneshotallreduce",
    re.IGNORECASE,
)
ATTENTION = re.compile(r"flash|fmha|attention|\battn|_attn_|sdpa|mha_(fwd|bwd)", re.IGNORECASE)
GEMM = re.compile(
    r"gemm|cublas|cutlass.*(gemm|Gemm|mma)|nvjet|wgmma|Cijk_|hgemm|sgemm|matmul|splitKreduce|_mm_|addmm|"
    r"xmma_.*(gemm|conv)|convolve|implicit_convolve|dgrad|wgrad|globalKernel|^aten::(linear|b?mm|baddbmm|einsum)$",
    re.IGNORECASE,
)
MEMORY_BOUND = re.compile(
    r"elementwise|reduce_kernel|multi_tensor_apply|softmax|layer_?norm|rms_?norm|triton_(poi|red|per|for)|CatArray|"
    r"FillFunctor|embedding|index|gather|scatter|copy|cast|dropout|nll_loss|cross_entropy|cub::|fused_adam|adam|"
    r"rope|rotary|transpose|split_with_sizes|chunk_cat|vectorized",
    re.IGNORECASE,
)
FAMILIES: tuple[tuple[KernelFamily, re.Pattern[str]], ...] = (
    ("communication", COMMUNICATION),
    ("attention", ATTENTION),
    ("gemm", GEMM),
    ("memory_bound", MEMORY_BOUND),
)


@lru_cache(maxsize=65_536)
def kernel_family(name: str) -> KernelFamily:
    """The family of a kernel.

    >>> kernel_family("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'communication'
    >>> kernel_family("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT"), kernel_family("triton_poi_fused_add_cos_sin_0")
    ('gemm', 'memory_bound')
    """
    return next((family for family, pattern in FAMILIES if pattern.search(name)), "other")


@lru_cache(maxsize=65_536)
def collective_kind(name: str) -> CollectiveKind | None:
    """The collective that a kernel, a profiler range or torch's own word names; ``None`` when it does not say.

    >>> collective_kind("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"), collective_kind("_allgather_base")
    ('all_reduce', 'all_gather')
    >>> collective_kind("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)") is None
    True
    """
    squashed = re.sub(r"[^a-z]", "", name.split("(", maxsplit=1)[0].lower().replace("_sum", "").replace("reduceop", ""))
    return next((kind for word, kind in COLLECTIVE_WORDS if word in squashed), None)
