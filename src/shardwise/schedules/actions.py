"""The actions of one rank of a pipeline, each of which is one pass of one chunk."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

Pass = Literal["forward", "backward", "input_backward", "weight_backward"]
"""``backward`` is the whole backward pass; the other two are its halves, for schedules that move them apart."""
Placement = Literal["loop", "v"]

LETTERS: tuple[tuple[Pass, str], ...] = (
    ("forward", "F"),
    ("backward", "B"),
    ("input_backward", "I"),
    ("weight_backward", "W"),
)
"""Letters that ``torch.distributed.pipelining`` prints for each pass."""
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
        """The action in torch's letters, such as ``3F0``."""
        return f"{self.chunk}{_LETTER_OF[self.kind]}{self.micro_batch}"


Order = tuple[Action, ...]
"""All actions of one rank, in the order it runs them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """The numbers that a schedule's order is made from."""

    pp: int
    num_microbatches: int
    """Micro-batches per data-parallel rank and step."""
    vpp: int = 1
    """Number of chunks that a rank runs."""
    num_microbatches_per_round: int | None = None
    """Micro-batches in a round of an interleaved schedule; ``None`` stands for pp."""
    num_extra_warmup: int = 0
    """Forwards that Megatron's interleaved ranks run ahead when it overlaps expert communication."""


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
