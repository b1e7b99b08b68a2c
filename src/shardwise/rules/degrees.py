"""Which degrees of parallelism a model allows, as small pure functions."""

from collections.abc import Iterable
from math import gcd, isqrt, log

from shardwise.model import ModelSpec


def divisors(number: int) -> tuple[int, ...]:
    """All divisors in ascending order.

    >>> divisors(28)
    (1, 2, 4, 7, 14, 28)
    """
    small = [divisor for divisor in range(1, isqrt(number) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}))


def nearest_first(options: Iterable[int], wanted: int) -> tuple[int, ...]:
    """``options`` by closeness to ``wanted`` on a logarithmic scale, the smaller of two equals first.

    >>> nearest_first((1, 2, 4, 16), 8)
    (4, 16, 2, 1)
    """
    return tuple(sorted(options, key=lambda option: (round(abs(log(option / wanted)), 9), option)))


def head_tp_degrees(
    *, num_attention_heads: int, num_key_value_heads: int, replicates_kv_heads: bool = False
) -> tuple[int, ...]:
    """Tensor-parallel degrees that divide the heads of one attention shape.

    A degree up to the number of key-value heads must divide that number. A larger degree must be a multiple of it, and
    only engines that replicate key-value heads have larger degrees.

    Source: Megatron-LM ``core/transformer/transformer_config.py`` (multiple or divisor of ``num_query_groups``);
    torchtitan ``models/common/decoder.py`` (``n_kv_heads % tp``).

    >>> head_tp_degrees(num_attention_heads=28, num_key_value_heads=4)
    (1, 2, 4)
    >>> head_tp_degrees(num_attention_heads=28, num_key_value_heads=4, replicates_kv_heads=True)
    (1, 2, 4, 28)
    """
    return tuple(
        tp
        for tp in divisors(num_attention_heads)
        if num_key_value_heads % tp == 0 or (replicates_kv_heads and tp % num_key_value_heads == 0)
    )


def valid_tp_degrees(
    model: ModelSpec, *, replicates_kv_heads: bool = False, max_tp: int | None = None
) -> tuple[int, ...]:
    """Tensor-parallel degrees that divide every head count, width and the hidden size of the model."""
    shared = gcd(model.hidden_size, *tensor_widths(model))
    degrees = set(divisors(shared))
    for shape in model.attention_shapes:
        degrees &= set(
            head_tp_degrees(
                num_attention_heads=shape.num_attention_heads,
                num_key_value_heads=shape.num_key_value_heads,
                replicates_kv_heads=replicates_kv_heads,
            )
        )
    return tuple(sorted(tp for tp in degrees if max_tp is None or tp <= max_tp))


def tensor_widths(model: ModelSpec) -> tuple[int, ...]:
    """Every width that tensor parallelism divides outside attention and routed experts."""
    dense = [shape.intermediate_size for shape in model.dense_shapes]
    shared = [shape.shared_intermediate_size for shape in model.moe_shapes if shape.shared_intermediate_size]
    mamba = [shape.intermediate_size for shape in model.mamba_shapes]
    mamba_heads = [shape.num_heads for shape in model.mamba_shapes if shape.num_heads]
    return (*dense, *shared, *mamba, *mamba_heads)


def valid_pp_degrees(model: ModelSpec, *, chunks_per_stage: int = 1, even: bool = False) -> tuple[int, ...]:
    """Pipeline degrees that leave every chunk something, or the same number of blocks when ``even``."""
    num_layers = model.num_hidden_layers
    most = most_chunks(model) // chunks_per_stage
    return tuple(pp for pp in range(1, most + 1) if not even or num_layers % (pp * chunks_per_stage) == 0)


def most_chunks(model: ModelSpec) -> int:
    """Pipeline chunks the model can be cut into: one per block, one for the embedding and one for the head.

    The zero-bubble authors ran 22 layers as 24 chunks of one layer, embedding or head each.

    Source: Qi et al. 2023, arXiv:2401.10241, table 4; torchtitan ``distributed/pipeline_parallel.py``.
    """
    return model.num_hidden_layers + 2


def valid_ep_degrees(model: ModelSpec) -> tuple[int, ...]:
    """Expert-parallel degrees: divisors of the number of routed experts; 1 for a dense model."""
    return divisors(gcd(*(shape.num_experts for shape in model.moe_shapes))) if model.moe_shapes else (1,)


def valid_expert_tp_degrees(model: ModelSpec) -> tuple[int, ...]:
    """Degrees that divide the width of one routed expert; 1 for a dense model."""
    return divisors(gcd(*(shape.moe_intermediate_size for shape in model.moe_shapes))) if model.moe_shapes else (1,)


def valid_cp_degrees(seq_len: int, *, is_zigzag: bool = True) -> tuple[int, ...]:
    """Context-parallel degrees: each rank takes two stripes of a causal sequence (zig-zag), or one.

    Source: Megatron-LM ``training/arguments.py`` (``seq_length % (2 * context_parallel_size)``); torchtitan
    ``trainer.py`` (``2 * cp``).

    >>> valid_cp_degrees(48)
    (1, 2, 3, 4, 6, 8, 12, 24)
    """
    stripes = 2 if is_zigzag else 1
    return tuple(cp for cp in divisors(seq_len) if cp == 1 or seq_len % (stripes * cp) == 0)
