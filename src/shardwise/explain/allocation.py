"""Names the tensor that an allocation is: its size is matched with a plan's tensors, or with shapes alone."""

from dataclasses import dataclass
from typing import Literal

from shardwise.explain.oom_text import Size
from shardwise.explain.plan_tensors import ELEMENT_DTYPES, PlanTensor, TensorGroup, plan_tensors
from shardwise.plan import Plan
from shardwise.units import MIB, Bytes

__all__ = ["AllocationMatch", "cuda_request_bytes", "match_plan", "match_shapes"]

MatchKind = Literal["exact", "unmade", "multiple", "shape"]
"""A tensor of the plan, one that the plan does not make, several of the plan's, or a shape without a plan."""

CUDA_BLOCK_BYTES: Bytes = 512
CUDA_SMALL_REQUEST_BYTES: Bytes = 1 * MIB
CUDA_SMALL_SEGMENT_BYTES: Bytes = 2 * MIB
CUDA_LARGE_REQUEST_BYTES: Bytes = 10 * MIB
CUDA_LARGE_SEGMENT_BYTES: Bytes = 20 * MIB
CUDA_ROUND_BYTES: Bytes = 2 * MIB
"""pytorch c10/core/AllocatorConfig.h and c10/cuda/CUDACachingAllocator.cpp, ``get_allocation_size``."""

MAX_MULTIPLE = 64
MAX_HEADS_IN_A_BATCH = 2048
SMALLEST_TELLING_BYTES: Bytes = 32 * MIB
"""Tensors below this size are hidden by the allocator's rounding."""

KNOWN_VOCABULARIES: tuple[tuple[int, str], ...] = (
    (30522, "BERT"),
    (32000, "Llama 1 and 2, Mistral 7B v0.1, Mixtral 8x7B"),
    (32064, "Phi-3"),
    (32128, "T5"),
    (32768, "Mistral 7B v0.3"),
    (49152, "StarCoder, SmolLM, Granite"),
    (50257, "GPT-2"),
    (50272, "OPT"),
    (50304, "GPT-2 padded to a multiple of 64, OLMo 1, Pythia 1B and less"),
    (50432, "GPT-NeoX-20B, MPT"),
    (65024, "Falcon"),
    (92544, "InternLM2"),
    (100352, "StableLM 2, DBRX, OLMo 2"),
    (102400, "DeepSeek V1 and V2"),
    (128256, "Llama 3"),
    (129280, "DeepSeek V3"),
    (131072, "Mistral Nemo"),
    (151936, "Qwen 2, 2.5 and 3 up to 14B"),
    (152064, "Qwen 2.5 from 7B on"),
    (201088, "gpt-oss"),
    (202048, "Llama 4"),
    (250880, "BLOOM"),
    (256000, "Gemma 1 and 2, Cohere"),
    (262144, "Gemma 3 1B"),
    (262208, "Gemma 3"),
)
"""``vocab_size`` of each family's public config.json."""

KNOWN_SEQ_LENS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationMatch:
    """One reading of an allocation."""

    name: str
    group: TensorGroup
    kind: MatchKind
    expression: str
    num_bytes: Bytes
    chance_fraction: float
    """How likely an unrelated size would fit this reading as well: small means telling."""
    fix: str


def cuda_request_bytes(num_bytes: Bytes) -> Bytes:
    """Bytes that the CUDA caching allocator asks the driver for when a tensor of this size does not fit its cache.

    Args:
        num_bytes: the tensor's bytes.

    Source: pytorch, c10/cuda/CUDACachingAllocator.cpp (``round_size`` and ``get_allocation_size``).
    Assumes: ``roundup_power2_divisions`` is not set.

    >>> cuda_request_bytes(3 * 1024 * 1024) // 2**20, cuda_request_bytes(11 * 2**20 + 1) // 2**20
    (20, 12)
    """
    rounded = max(CUDA_BLOCK_BYTES, -(-num_bytes // CUDA_BLOCK_BYTES) * CUDA_BLOCK_BYTES)
    if rounded <= CUDA_SMALL_REQUEST_BYTES:
        return CUDA_SMALL_SEGMENT_BYTES
    if rounded < CUDA_LARGE_REQUEST_BYTES:
        return CUDA_LARGE_SEGMENT_BYTES
    return -(-rounded // CUDA_ROUND_BYTES) * CUDA_ROUND_BYTES


def match_plan(size: Size, *, plan: Plan, is_rounded_up: bool = True) -> tuple[AllocationMatch, ...]:
    """Tensors of the plan with this size, most telling first; then small multiples of them.

    A multiple is offered because users often describe another micro-batch than the one that failed.
    """
    tensors = plan_tensors(plan)
    exact = [_exact(tensor, size) for tensor in tensors if _prints_like(tensor.num_bytes, size, is_rounded_up)]
    if exact:
        return tuple(sorted(exact, key=_preference))
    multiples = [_multiple(tensor, size, is_rounded_up) for tensor in tensors if tensor.num_bytes < size.low_bytes]
    return tuple(sorted((match for match in multiples if match is not None), key=_preference))


def match_shapes(size: Size, *, is_rounded_up: bool = True, limit: int = 6) -> tuple[AllocationMatch, ...]:
    """Readings of a size without a plan: logits of known vocabularies, and attention scores of common lengths."""
    if size.high_bytes < SMALLEST_TELLING_BYTES:
        return ()
    found = [*_logit_shapes(size, is_rounded_up), *_score_shapes(size, is_rounded_up)]
    return tuple(sorted(found, key=_preference)[:limit])


def _preference(match: AllocationMatch) -> tuple[float, str, int]:
    return (match.chance_fraction, match.name, match.num_bytes)


def _prints_like(num_bytes: Bytes, size: Size, is_rounded_up: bool) -> bool:
    if size.contains(num_bytes):
        return True
    return is_rounded_up and size.contains(cuda_request_bytes(num_bytes))


def _window_bytes(size: Size, is_rounded_up: bool) -> Bytes:
    """Width of the interval of tensor sizes that would print like this."""
    return max(1, size.high_bytes - size.low_bytes + (CUDA_ROUND_BYTES if is_rounded_up else 0))


def _exact(tensor: PlanTensor, size: Size) -> AllocationMatch:
    return AllocationMatch(
        name=tensor.name,
        group=tensor.group,
        kind="exact" if tensor.is_made else "unmade",
        expression=tensor.expression,
        num_bytes=tensor.num_bytes,
        chance_fraction=min(1.0, _window_bytes(size, False) / max(1, tensor.num_bytes)),
        fix=tensor.fix,
    )


def _multiple(tensor: PlanTensor, size: Size, is_rounded_up: bool) -> AllocationMatch | None:
    times = round(size.num_bytes / tensor.num_bytes)
    if tensor.group not in ("logits", "attention-scores", "activation", "moe") or not 2 <= times <= MAX_MULTIPLE:
        return None
    if not _prints_like(times * tensor.num_bytes, size, is_rounded_up):
        return None
    return AllocationMatch(
        name=f"{times} x {tensor.name}",
        group=tensor.group,
        kind="multiple",
        expression=f"{times} x ({tensor.expression}), as with micro_batch_size {times} times as large",
        num_bytes=times * tensor.num_bytes,
        chance_fraction=min(1.0, _window_bytes(size, is_rounded_up) / tensor.num_bytes),
        fix=tensor.fix,
    )


def _round_number(count: int) -> int:
    """The power of two in a count, up to 4096: token counts are round, accidents are not."""
    return min(4096, count & -count) if count else 1


def _logit_shapes(size: Size, is_rounded_up: bool) -> list[AllocationMatch]:
    window, found = _window_bytes(size, is_rounded_up), []
    for vocab, family in KNOWN_VOCABULARIES:
        for element_bytes, dtype in ELEMENT_DTYPES:
            row_bytes = vocab * element_bytes
            last = size.high_bytes // row_bytes
            first = max(1, (size.high_bytes - window) // row_bytes)
            tokens = max(range(first, last + 1), key=_round_number, default=0)
            if tokens and _round_number(tokens) >= 256 and _prints_like(tokens * row_bytes, size, is_rounded_up):
                found.append(
                    AllocationMatch(
                        name=f"logits over a vocabulary of {vocab} ({family}), {dtype}",
                        group="logits",
                        kind="shape",
                        expression=f"{tokens} tokens x vocab_size {vocab} x {element_bytes} B",
                        num_bytes=tokens * row_bytes,
                        chance_fraction=min(1.0, window / (row_bytes * _round_number(tokens))),
                        fix="compute the loss in chunks (loss_chunks) or use a fused cross-entropy",
                    )
                )
    return found


def _score_shapes(size: Size, is_rounded_up: bool) -> list[AllocationMatch]:
    """One reading per dtype that lists every common length: sizes that are powers of two fit several of them."""
    window, found = _window_bytes(size, is_rounded_up), []
    for element_bytes, dtype in ELEMENT_DTYPES:
        squares = [(seq_len, seq_len * seq_len * element_bytes) for seq_len in KNOWN_SEQ_LENS]
        counted = [(seq_len, square, round(size.num_bytes / square)) for seq_len, square in squares]
        fitting = [
            (seq_len, square, heads)
            for seq_len, square, heads in counted
            if 8 <= heads <= MAX_HEADS_IN_A_BATCH
            and heads % 8 == 0
            and _prints_like(heads * square, size, is_rounded_up)
        ]
        if fitting:
            found.append(
                AllocationMatch(
                    name=f"attention scores, {dtype}",
                    group="attention-scores",
                    kind="shape",
                    expression="(micro_batch_size x heads) x seq_len x seq_len: "
                    + ", or ".join(
                        f"{heads} x {length} x {length} x {element_bytes} B" for length, _, heads in fitting
                    ),
                    num_bytes=fitting[0][1] * fitting[0][2],
                    chance_fraction=min(1.0, window / (8 * fitting[-1][1])),
                    fix="use flash (fused) attention, which never stores the scores, or a smaller micro_batch_size",
                )
            )
    return found
