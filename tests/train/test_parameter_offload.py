"""Parameters on the host: a rank that has all of them brings them to the device unit by unit."""

import pytest
import torch
from torch.distributed.tensor import DTensor

from shardwise.train.feed import open_feed
from shardwise.train.loop import make_trainer
from shardwise.train.mesh import make_mesh
from train.models import make_job

CPU = torch.device("cpu")
ALONE = {"zero_stage": 3}


def _whole_blocks(job):
    """Losses, and for each block of every pass how many blocks were whole when it began."""
    mesh = make_mesh(job.layout, device_type="cpu")
    feed = open_feed(job, data_parallel_rank=mesh.data_parallel_rank, vocab_size=256, device=CPU)
    trainer = make_trainer(job, mesh, device=CPU, source=feed)
    blocks, counts = [*trainer.built.chunks[0].blocks()], []

    def count(*_given):
        counts.append(sum(not isinstance(next(block.parameters()), DTensor) for block in blocks))

    for block in blocks:
        block.register_forward_hook(count)
        block.register_full_backward_hook(count)
    return [trainer.step().loss.item() for _ in range(2)], counts


@pytest.mark.parametrize("micro_batch_size", [8, 2], ids=["one micro-batch", "four micro-batches"])
def test_one_rank_keeps_the_last_block_alone_between_forward_and_backward(worlds, micro_batch_size):
    """All blocks stayed on the device until the step was done."""
    kept, counts = worlds[1].run(_whole_blocks, make_job(layout=ALONE, micro_batch_size=micro_batch_size))[0]
    moved, fewer = worlds[1].run(
        _whole_blocks, make_job(layout=ALONE, micro_batch_size=micro_batch_size, offload="parameters")
    )[0]
    assert moved == kept
    assert max(fewer) == 1 < max(counts) == 4
