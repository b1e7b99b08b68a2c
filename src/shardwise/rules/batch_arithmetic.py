"""Batch arithmetic: which settings come out even, and what changes when one of them does."""

from dataclasses import dataclass

from shardwise.rules.degrees import divisors


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSetting:
    """One consistent set: global = micro * num_microbatches * data-parallel ranks."""

    global_batch_size: int
    micro_batch_size: int
    data_parallel_size: int
    num_microbatches: int


def nearest_batch_settings(
    *, global_batch_size: int, micro_batch_size: int, data_parallel_size: int
) -> tuple[BatchSetting, ...]:
    """The nearest settings that come out even: the batch below and above, then other numbers of ranks.

    >>> [s.num_microbatches for s in nearest_batch_settings(
    ...     global_batch_size=256, micro_batch_size=2, data_parallel_size=7)]
    [18, 19, 16, 32]
    """
    step = micro_batch_size * data_parallel_size
    below, remainder = divmod(global_batch_size, step)
    counts = (below,) if not remainder else (below, below + 1)
    same_ranks = sorted(counts, key=lambda count: abs(count * step - global_batch_size))
    settings = [
        BatchSetting(
            global_batch_size=count * step,
            micro_batch_size=micro_batch_size,
            data_parallel_size=data_parallel_size,
            num_microbatches=count,
        )
        for count in same_ranks
        if count
    ]
    return tuple(settings) + _other_ranks(global_batch_size, micro_batch_size, data_parallel_size)


def _other_ranks(wanted: int, micro_batch_size: int, data_parallel_size: int) -> tuple[BatchSetting, ...]:
    """The next larger and the next smaller number of ranks that keep batch and micro-batch as they are."""
    if wanted % micro_batch_size:
        return ()
    fitting = divisors(wanted // micro_batch_size)
    larger = [ranks for ranks in fitting if ranks > data_parallel_size][:1]
    smaller = [ranks for ranks in fitting if ranks < data_parallel_size][-1:]
    return tuple(
        BatchSetting(
            global_batch_size=wanted,
            micro_batch_size=micro_batch_size,
            data_parallel_size=ranks,
            num_microbatches=wanted // (micro_batch_size * ranks),
        )
        for ranks in (*larger, *smaller)
    )
