"""One pass of a micro-batch through a stage as a program for the event engine.

The pass is a sequence of pieces: blocks that FSDP gathers one at a time, or equal shares of the pass between two
buckets. A piece computes, waits for the collectives inside it, and is accompanied by gathers before and reductions
after it, which run on their axis' own stream:

- gathers are issued one piece ahead, or as many as the plan prefetches, once the piece before the current one is done:
  its memory is free then and its output copied (FSDP2's implicit prefetch in forward, explicit in backward; torch
  ``_fsdp_param_group.py``);
- the gather ahead is issued before the reduction of the current piece, so that it hides under the next one;
- FSDP2 frees a gradient only after its reduction, so computation runs at most one reduction ahead (``is_throttled``);
- the host launches one piece after the other and never waits for the device: a piece starts once everything before it
  is launched, and ends no earlier than its own last launch (listed only where some piece takes longer to launch);
- gathers and reductions of one axis share its links and its communicator, hence one stream per axis.

Equal pieces repeat: only the first few of a run are listed, see :mod:`shardwise.predict.pass_time`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from shardwise.predict.tasks import COMPUTE, HOST
from shardwise.simulate.engine import Task
from shardwise.units import Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """``count`` equal pieces of a pass, one after the other."""

    works: tuple[Task, ...]
    waits: tuple[Task, ...] = ()
    """Collectives that the piece's own computation waits for."""
    gathers: tuple[Task, ...] = ()
    """Collectives before the piece, or its copies from the host."""
    reductions: tuple[Task, ...] = ()
    """Collectives after the piece, each behind the one before it."""
    count: int = 1
    issue_s: Seconds = 0.0
    """Seconds the host takes to launch the whole piece."""

    @property
    def line_s(self) -> Seconds:
        """Computation and what it waits for, when launches never matter."""
        return sum(work.duration_s for work in self.works) + sum(call.duration_s for call in self.waits)


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceTasks:
    """Positions of the tasks of one piece in its program."""

    index: int
    """Position of the run that the piece belongs to."""
    tasks: tuple[int, ...]
    line: tuple[int, ...]
    """Tasks that run one after the other whatever else happens: computation and the collectives it waits for."""

    @property
    def last_work(self) -> int:
        """The last task in line, which the next piece comes after."""
        return self.line[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassProgram:
    """The tasks of a pass, and which of them belong to which piece."""

    tasks: tuple[Task, ...]
    pieces: tuple[PieceTasks, ...]
    """The pieces in the order they run."""

    @property
    def line(self) -> list[int]:
        """Positions of the tasks that run one after the other."""
        return [position for piece in self.pieces for position in piece.line]


def pass_program(
    runs: Sequence[Piece], *, is_throttled: bool, most_pieces: int | None = None, prefetch_units: int = 1
) -> PassProgram:
    """List the tasks of a pass, with no more than ``most_pieces`` pieces of each run."""
    writer = _PassWriter(is_throttled=is_throttled, has_launches=is_launch_bound(runs))
    pieces = [
        (index, piece)
        for index, piece in enumerate(runs)
        for _ in range(piece.count if most_pieces is None else min(piece.count, most_pieces))
    ]
    for _, piece in pieces[:prefetch_units]:
        writer.gather(piece)
    for number, (index, piece) in enumerate(pieces):
        if number + prefetch_units < len(pieces):
            writer.gather(pieces[number + prefetch_units][1])
        writer.work(index, piece)
    return PassProgram(tasks=tuple(writer.tasks), pieces=tuple(writer.pieces))


def is_launch_bound(runs: Sequence[Piece]) -> bool:
    """Whether some piece takes longer to launch than to run; otherwise the host is always ahead."""
    return any(piece.issue_s > sum(work.duration_s for work in piece.works) for piece in runs)


class _PassWriter:
    """Lists the tasks of one piece after the other."""

    def __init__(self, *, is_throttled: bool, has_launches: bool) -> None:
        self.tasks: list[Task] = []
        self.pieces: list[PieceTasks] = []
        self._is_throttled = is_throttled
        self._issued_by = HOST if has_launches else None
        self._gathered: list[list[int]] = []
        """For every piece, positions of the gathers it waits for."""
        self._reduced: list[int | None] = []
        """For every finished piece, the position of its first reduction."""

    def gather(self, piece: Piece) -> None:
        """Issue the gathers of the next piece, behind the piece before the current one."""
        before = self.pieces[-1].last_work if self.pieces else None
        depends_on = () if before is None else (before,)
        self._gathered.append([self._add_call(call, depends_on) for call in piece.gathers])

    def work(self, index: int, piece: Piece) -> None:
        """Compute a piece, with what it waits for, and reduce its gradients."""
        number = len(self.pieces)
        first = len(self.tasks)
        needed = list(self._gathered[number])
        tasks = list(needed)
        if self.pieces:
            needed.append(self.pieces[-1].last_work)
        earlier = self._reduced[number - 2] if self._is_throttled and number >= 2 else None
        if earlier is not None:
            needed.append(earlier)
        for work in piece.works:
            self.tasks.append(
                Task(
                    name=work.name,
                    stream=work.stream,
                    duration_s=work.duration_s,
                    depends_on=tuple(needed),
                    category=work.category,
                    issued_by=self._issued_by,
                )
            )
            needed = []
        for call in piece.waits:
            self._add_call(call, (len(self.tasks) - 1,))
        if self._issued_by is not None:
            self._add_launch(piece)
        line = tuple(range(first, len(self.tasks)))
        self._reduced.append(len(self.tasks) if piece.reductions else None)
        for call in piece.reductions:
            self._add_call(call, (len(self.tasks) - 1,))
        tasks += range(first, len(self.tasks))
        self.pieces.append(PieceTasks(index=index, tasks=tuple(tasks), line=line))

    def _add_launch(self, piece: Piece) -> None:
        """The end of a piece: its last kernel is launched, and everything in line is done."""
        self.tasks.append(
            Task(
                name=piece.works[0].name,
                stream=COMPUTE,
                duration_s=0.0,
                depends_on=(len(self.tasks) - 1,),
                issued_by=self._issued_by,
                issue_s=piece.issue_s,
            )
        )

    def _add_call(self, call: Task, depends_on: tuple[int, ...]) -> int:
        self.tasks.append(
            Task(
                name=call.name,
                stream=call.stream,
                duration_s=call.duration_s,
                depends_on=depends_on,
                category=call.category,
                slowdown_ratio=call.slowdown_ratio,
            )
        )
        return len(self.tasks) - 1
