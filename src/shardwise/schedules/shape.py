"""A schedule with its degrees, and the orders of all its ranks."""

from dataclasses import dataclass
from functools import cached_property

from shardwise.schedules.actions import Degrees, Order, Placement
from shardwise.schedules.table import ScheduleName


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleShape:
    """A schedule's name and the numbers that its order is made from."""

    name: ScheduleName
    pp: int
    num_microbatches: int
    """Micro-batches per data-parallel rank and step."""
    vpp: int = 1
    """Chunks that a rank runs; V-shaped schedules always run two, schedules of one chunk always one."""
    num_microbatches_per_round: int | None = None
    """Micro-batches in a round of an interleaved schedule: pp for Megatron; ``None`` stands for torch's even share."""
    num_extra_warmup: int = 0
    """Forwards that Megatron's interleaved ranks run ahead when it overlaps expert communication."""

    @property
    def degrees(self) -> Degrees:
        """Everything but the name."""
        return Degrees(
            pp=self.pp,
            num_microbatches=self.num_microbatches,
            vpp=self.vpp,
            num_microbatches_per_round=self.num_microbatches_per_round,
            num_extra_warmup=self.num_extra_warmup,
        )


@dataclass(frozen=True, eq=False)
class PipelineSchedule:
    """The orders of all ranks of one pipeline."""

    shape: ScheduleShape
    """The shape that was asked for, with its chunks and rounds filled in."""
    placement: Placement
    orders: tuple[Order, ...]
    """The order of each rank."""
    model_copies: int = 1
    """Copies of the model that the chunks hold together."""

    @property
    def num_chunks(self) -> int:
        """Chunks of the whole model."""
        return self.shape.pp * self.shape.vpp

    @property
    def chunks_per_model(self) -> int:
        """Chunks that a micro-batch runs through: all of them, but under DualPipe those of its direction."""
        return self.num_chunks // self.model_copies

    @property
    def chunks_per_rank(self) -> int:
        """Chunks that a micro-batch runs through on one rank."""
        return self.chunks_per_model // self.shape.pp

    @property
    def num_actions(self) -> int:
        """Passes of all ranks."""
        return sum(map(len, self.orders))

    @cached_property
    def rank_of_chunk(self) -> tuple[int, ...]:
        """The rank that runs each chunk."""
        return tuple(chunk_rank(chunk, pp=self.shape.pp, placement=self.placement) for chunk in range(self.num_chunks))


def chunk_rank(chunk: int, *, pp: int, placement: Placement) -> int:
    """The rank of a chunk: round-robin in a loop, there and back again in a V.

    >>> [chunk_rank(chunk, pp=2, placement="v") for chunk in range(4)]
    [0, 1, 1, 0]
    """
    lap, step = divmod(chunk, pp)
    return pp - 1 - step if placement == "v" and lap % 2 else step
