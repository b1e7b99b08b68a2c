"""What one rank of a pipeline does, one pass of one chunk after the other."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from shardwise.layout import Schedule

Pass = Literal["forward", "backward", "input_backward", "weight_backward"]
"""``backward`` is the whole backward pass; the other two are its halves, for schedules that move them apart."""
Placement = Literal["loop", "v"]
ScheduleName = Schedule | Literal["looped-bfs"]

LETTERS: tuple[tuple[Pass, str], ...] = (
    ("forward", "F"),
    ("backward", "B"),
    ("input_backward", "I"),
    ("weight_backward", "W"),
)
"""The letters that ``torch.distributed.pipelining`` prints."""
_LETTER_OF = dict(LETTERS)


class Action(NamedTuple):
    """One pass of one micro-batch through one chunk; a schedule has tens of thousands."""

    kind: Pass
    chunk: int
    """Position in the model: 0 holds the embedding, the last one the head. torch calls it the stage index. Under
    DualPipe chunks from p on are the model once more, for micro-batches that run the other way."""
    micro_batch: int
    joins_next: bool = False
    """Whether it runs as one block with the next action: DualPipe's overlapped forward and backward."""

    @property
    def text(self) -> str:
        """As torch prints it, such as ``3F0``."""
        return f"{self.chunk}{_LETTER_OF[self.kind]}{self.micro_batch}"


Order = tuple[Action, ...]
"""All actions of one rank, in the order it runs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleShape:
    """What determines the order of every rank."""

    name: ScheduleName
    pp: int
    num_microbatches: int
    """Per data-parallel rank and step."""
    vpp: int = 1
    """Chunks a rank runs; V-shaped schedules always run two, schedules of one chunk always one."""
    num_microbatches_per_round: int | None = None
    """Of interleaved schedules: p for Megatron; left out, the even share that torch takes."""
    num_extra_warmup: int = 0
    """Forwards that Megatron's interleaved ranks run ahead when it overlaps expert communication."""


@dataclass(frozen=True, eq=False)
class PipelineSchedule:
    """The orders of all ranks of one pipeline."""

    shape: ScheduleShape
    """As asked for, with the chunks and rounds that were taken."""
    placement: Placement
    orders: tuple[Order, ...]
    """One per rank."""

    @property
    def num_chunks(self) -> int:
        """Chunks of the whole model."""
        return self.shape.pp * self.shape.vpp

    @property
    def chunks_per_model(self) -> int:
        """Chunks that a micro-batch runs through: all of them, but under DualPipe those of its direction."""
        return self.shape.pp if self.shape.name == "dualpipe" else self.num_chunks

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


def order_text(order: Order) -> str:
    """An order as one line in torch's letters; overlapped pairs in brackets.

    >>> order_text((Action("forward", 0, 1, joins_next=True), Action("backward", 3, 0)))
    '(0F1;3B0)'
    """
    words, opened = [], False
    for action in order:
        text = f"({action.text};" if action.joins_next else f"{action.text})" if opened else action.text
        words.append(text if action.joins_next else f"{text} ")
        opened = action.joins_next
    return "".join(words).rstrip()
