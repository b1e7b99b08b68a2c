"""How FSDP2 cuts a tensor, as a small pure function."""


def dim0_shard_rows(*, num_rows: int, num_shards: int) -> tuple[int, ...]:
    """Rows each rank holds when a tensor is cut along its first dim: equal chunks rounded up, the last ranks short.

    Some ranks may hold nothing. Memory is set by the first.

    Source: torch ``torch.chunk`` as used by ``DTensor`` ``Shard(0)``; pytorch/pytorch issue 102821.

    >>> dim0_shard_rows(num_rows=5, num_shards=4)
    (2, 2, 1, 0)
    """
    chunk = -(-num_rows // num_shards)
    return tuple(max(0, min(chunk, num_rows - chunk * shard)) for shard in range(num_shards))
