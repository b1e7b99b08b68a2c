"""Pipeline parallelism: which chunks a rank holds, and torch's schedules that run them."""

from collections.abc import Callable

import torch
from torch import Tensor, distributed, nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from shardwise.errors import LayoutError
from shardwise.layout import Layout
from shardwise.recipe import Precision
from shardwise.schedules.table import SCHEDULE_KINDS, SCHEDULES, TORCH_SCHEDULES
from shardwise.train.job import Job
from shardwise.train.mesh import Mesh

ACTIVATION_DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "bf16-mixed": torch.bfloat16,
    "fp16-mixed": torch.float16,
    "fp8-mixed": torch.bfloat16,
}
"""dtype of the activations that travel between chunks, and of their gradients."""
Chunk = tuple[range, bool, bool]
"""Blocks, and whether the chunk holds the embedding and the head."""


def chunk_indices(layout: Layout, stage: int) -> tuple[int, ...]:
    """The chunks of a pipeline rank in model order: round-robin, or there and back again.

    >>> chunk_indices(Layout(pp=4, vpp=2, schedule="interleaved"), 1)
    (1, 5)
    >>> chunk_indices(Layout(pp=4, schedule="zbv"), 1)
    (1, 6)
    """
    if SCHEDULE_KINDS[layout.schedule].doubles_chunks and layout.pp > 1:
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
    """A chunk's input and output, token ids or hidden states, on the meta device: neighbours exchange no shapes."""
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
    kind = SCHEDULE_KINDS[layout.schedule]
    if kind.torch_class is None:
        raise LayoutError(
            f"torch has no pipeline schedule {layout.schedule}",
            code="train-schedule",
            fix=f"set schedule to one of {', '.join(name for name in SCHEDULES if name in TORCH_SCHEDULES)}",
        )
    schedule_class = getattr(pipelining, kind.torch_class)
    held = stages[0] if issubclass(schedule_class, PipelineScheduleSingle) else stages
    made: PipelineScheduleSingle | PipelineScheduleMulti = schedule_class(
        held, job.num_microbatches, loss_fn=loss, scale_grads=False
    )
    return made


class Relay:
    """Takes one micro-batch forward through the chunks of all stages, each after the one before it.

    Every schedule of torch goes back as well; its ``eval`` leaves that out, but never ends in V-shaped ones (2.13).
    """

    def __init__(self, chunks: tuple[nn.Module, ...], *, job: Job, mesh: Mesh) -> None:
        layout = job.layout
        self._own = mesh.rank("pp")
        self._group = mesh.whole["pp"].get_group()
        self._chunks = tuple(zip(chunk_indices(layout, self._own), chunks, strict=True))
        owners = {index: stage for stage in range(layout.pp) for index in chunk_indices(layout, stage)}
        self._owners = tuple(owners[index] for index in range(len(job.chunk_layers)))
        self._hidden = _boundaries(job, is_first=False)[1]

    def forward(self, ids_BS: Tensor, **places: Tensor) -> Tensor | None:
        """The output of this rank's last chunk: on the rank with the model's last chunk, the final hidden states."""
        x: Tensor | None = None
        for index, chunk in self._chunks:
            source = self._owners[index - 1] if index else self._own
            if index == 0:
                x = ids_BS
            elif source != self._own:
                x = torch.empty(self._hidden.shape, dtype=self._hidden.dtype, device=ids_BS.device)
                distributed.recv(x, group=self._group, group_src=source)
            x = chunk(x, **places)
            if index + 1 < len(self._owners) and self._owners[index + 1] != self._own:
                distributed.send(x.contiguous(), group=self._group, group_dst=self._owners[index + 1])
        return x
