"""The record of one pipeline schedule."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from shardwise.schedules.actions import Degrees, Order, Placement

Filling = Literal["passes", "weight gradients", "v", "overlapped v", "both ends"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKind:
    """One schedule."""

    order: Callable[[int, Degrees], Order]
    """The passes of one rank in the order it runs them. What a rank keeps at once follows from it
    (``step/in_flight.py``)."""
    num_chunks: int | None = None
    """Chunks that every rank runs; ``None`` where the layout says how many (``vpp``)."""
    least_chunks: int = 1
    """Chunks of a rank below which the layout may not go."""
    is_v_shaped: bool = False
    """Whether the ranks lie along the chunks there and back again, not round after round."""
    model_copies: int = 1
    """Copies of the model in one pipeline: two where micro-batches start at both ends, of which each rank holds a chunk
    of either."""
    splits_backward: bool = False
    """Whether gradients of inputs and of weights are separate passes."""
    overlaps_passes: bool = False
    """Whether a forward and a backward of two micro-batches run as one block, and experts exchange tokens of one under
    the computation of the other."""
    runs_forwards_first: bool = False
    """Whether every forward is done before the first backward."""
    least_microbatches_per_rank: int = 0
    """Micro-batches that a step needs for every rank of the pipeline; 0 where any number runs."""
    steady_microbatches_per_rank: int = 2
    """Micro-batches for every rank of the pipeline that fill and drain it; more of them repeat what it does between."""
    filling: Filling = "passes"
    """Which passes a rank waits for while the pipeline fills and drains (``predict/pipeline_time.py``)."""
    is_searched: bool = True
    """Whether a search tries it unasked."""
    torch_class: str | None = None
    """Class of the schedule in ``torch.distributed.pipelining``; ``None`` where torch has none."""

    @property
    def placement(self) -> Placement:
        """How chunks are laid over ranks."""
        return "v" if self.is_v_shaped else "loop"

    @property
    def runs_in_rounds(self) -> bool:
        """Whether micro-batches go through the chunks of a rank in rounds, by turns with rounds of backwards."""
        return self.num_chunks is None and not self.runs_forwards_first

    @property
    def doubles_chunks(self) -> bool:
        """Whether every rank runs two chunks of one model, whatever ``vpp`` says."""
        return self.num_chunks == 2 and self.model_copies == 1

    @property
    def is_plain(self) -> bool:
        """Whether a rank runs one chunk whose backward is one pass: stages wait for each other's messages."""
        return self.num_chunks == 1 and not self.splits_backward

    @property
    def torch_splits_backward(self) -> bool:
        """Whether torch runs it with backward in two halves."""
        return self.splits_backward and self.torch_class is not None

    @property
    def puts_weights_off(self) -> bool:
        """Whether torch's ranks behind the first keep what gradients of weights need while input gradients go on.

        Not counted are the V-shaped schedules, whose ranks hold most where few wait.
        """
        return self.torch_splits_backward and not self.is_v_shaped
