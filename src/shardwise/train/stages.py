"""Pipeline parallelism: which chunks a rank holds, and torch's schedules that run them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from shardwise.errors import LayoutError
from shardwise.layout import Layout
from shardwise.recipe import Precision
from shardwise.train.job import Job
from shardwise.train.mesh import Mesh

SINGLE: dict[str, type[PipelineScheduleSingle]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
MULTI: dict[str, type[PipelineScheduleMulti]] = {
    "interleaved": ScheduleInterleaved1F1B,
    "zb-h1": ScheduleInterleavedZeroBubble,
    "zbv": ScheduleZBVZeroBubble,
    "dualpipev": ScheduleDualPipeV,
}
V_SHAPED = ("zbv", "dualpipev")
ACTIVATION_DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "bf16-mixed": torch.bfloat16,
    "fp16-mixed": torch.float16,
    "fp8-mixed": torch.bfloat16,
}
"""Of what travels between chunks."""
Chunk = tuple[range, bool, bool]
"""Blocks, and whether the chunk holds the embedding and the head."""


def chunk_indices(layout: Layout, stage: int) -> tuple[int, ...]:
    """The chunks of a pipeline rank in model order: round-robin, or there and back again.

    >>> chunk_indices(Layout(pp=4, vpp=2, schedule="interleaved"), 1)
    (1, 5)
    >>> chunk_indices(Layout(pp=4, schedule="zbv"), 1)
    (1, 6)
    """
    if layout.schedule in V_SHAPED and layout.pp > 1:
        return stage, 2 * layout.pp - 1 - stage
    return tuple(range(stage, layout.pp * layout.vpp, layout.pp))


def chunks_of_rank(job: Job, stage: int) -> tuple[Chunk, ...]:
    """The blocks of every chunk a pipeline rank holds."""
    if job.layout.pp == 1:
        num_layers = int(str(job.model_config["num_hidden_layers"]))
        return ((range(num_layers), True, True),)
    starts = [sum(job.chunk_layers[:index]) for index in range(len(job.chunk_layers) + 1)]
    last = len(job.chunk_layers) - 1
    return tuple(
        (range(starts[index], starts[index + 1]), index == 0, index == last)
        for index in chunk_indices(job.layout, stage)
    )


def _boundaries(job: Job, *, is_first: bool) -> tuple[Tensor, Tensor]:
    """What a chunk takes and gives, so that neighbours need not tell each other: token ids, or hidden states."""
    layout, recipe = job.layout, job.recipe
    tokens = recipe.seq_len // layout.cp
    divided = tokens // layout.tp if layout.sequence_parallel else tokens
    hidden_size = int(str(job.model_config["hidden_size"]))
    hidden_BSD = torch.empty(
        (recipe.micro_batch_size, divided, hidden_size),
        dtype=ACTIVATION_DTYPES[recipe.precision],
        device="meta",
        requires_grad=True,
    )
    ids_BS = torch.empty((recipe.micro_batch_size, tokens), dtype=torch.int64, device="meta")
    return (ids_BS if is_first else hidden_BSD), hidden_BSD


def make_schedule(
    chunks: tuple[nn.Module, ...], *, job: Job, mesh: Mesh, loss: Callable[[Tensor, Tensor], Tensor]
) -> PipelineScheduleSingle | PipelineScheduleMulti:
    """The schedule that runs this rank's chunks.

    Raises:
        LayoutError: torch has no such schedule.
    """
    layout = job.layout
    group = mesh.whole["pp"].get_group()
    device = torch.device(mesh.device_type, torch.cuda.current_device() if mesh.device_type == "cuda" else None)
    num_chunks = len(job.chunk_layers)
    stages = [
        PipelineStage(chunk, index, num_chunks, device, *_boundaries(job, is_first=index == 0), group=group)
        for chunk, index in zip(chunks, chunk_indices(layout, mesh.rank("pp")), strict=True)
    ]
    if layout.schedule in SINGLE:
        return SINGLE[layout.schedule](stages[0], job.num_microbatches, loss_fn=loss, scale_grads=False)
    if layout.schedule not in MULTI:
        raise LayoutError(
            f"torch has no pipeline schedule {layout.schedule}",
            code="train-schedule",
            fix=f"set schedule to one of {', '.join((*SINGLE, *MULTI))}",
        )
    return MULTI[layout.schedule](stages, job.num_microbatches, loss_fn=loss, scale_grads=False)
