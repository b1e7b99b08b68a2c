"""The link that collectives are timed on, and the answers that several lessons give about one collective."""

from dataclasses import dataclass
from math import isfinite

from shardwise.course.collectives.moves import CollectiveProgram
from shardwise.course.collectives.timing import LinkTime
from shardwise.course.collectives.values import RoundState
from shardwise.course.lesson import LessonStep, LessonTable, Message, MessagePicture, MessageRound, Setting
from shardwise.course.lessons.request import LessonRequest, option_text
from shardwise.errors import SimulationError

NETWORK_STEP_S = 14e-6
"""One step of NCCL's Simple protocol over a network, from its tuner: NVIDIA/nccl src/graph/tuning.cc."""
NETWORK_BYTES_PER_S = 50e9
"""400 Gb/s, one direction."""
PAYLOAD_BYTES = 14e9
"""bf16 gradients of 7B parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """The payload, and the link that it is sent over."""

    payload_bytes: float
    link: LinkTime

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The settings as a lesson lists them."""
        return (
            Setting(name="payload-bytes", value=self.payload_bytes, unit="decimal_bytes", meaning="the whole tensor"),
            Setting(name="latency-s", value=self.link.latency_s, unit="s", meaning="alpha: of every message"),
            Setting(
                name="bandwidth-bytes-per-s",
                value=self.link.bandwidth_bytes_per_s,
                unit="bytes_per_s",
                meaning="beta: of a rank's link, one direction",
            ),
        )


def transfer_of(request: LessonRequest) -> Transfer:
    """Fill in what was not asked for: the gradients of a 7B model over a network of 400 Gb/s.

    Raises:
        SimulationError: a size, latency or rate that nothing can have.
    """
    return Transfer(
        payload_bytes=_positive("payload_bytes", request.payload_bytes, PAYLOAD_BYTES),
        link=LinkTime(
            latency_s=_positive("latency_s", request.latency_s, NETWORK_STEP_S, may_be_zero=True),
            bandwidth_bytes_per_s=_positive(
                "bandwidth_bytes_per_s", request.bandwidth_bytes_per_s, NETWORK_BYTES_PER_S
            ),
        ),
    )


def _positive(name: str, value: float | None, default: float, *, may_be_zero: bool = False) -> float:
    number = default if value is None else value
    if isfinite(number) and (number > 0 or (may_be_zero and number == 0)):
        return number
    raise SimulationError(
        f"{option_text(name)} {number:g} is not {'zero or more' if may_be_zero else 'more than zero'}",
        code="simulate-size",
        fix=f"use {option_text(name)} {default:g}",
    )


def round_messages(program: CollectiveProgram, indices: tuple[int, ...], payload_bytes: float) -> tuple[Message, ...]:
    """The messages of a round, each with its pieces and bytes."""
    piece_bytes = payload_bytes / program.num_pieces
    return tuple(
        Message(
            sender=one.sender,
            receiver=one.receiver,
            num_bytes=piece_bytes * len(one.pieces),
            what=f"part for {one.receiver}" if program.is_exchange else pieces_text(one.pieces),
            adds=one.adds,
        )
        for one in (program.messages[index] for index in indices)
    )


def pieces_text(pieces: tuple[int, ...]) -> str:
    """Which chunks a message carries.

    >>> pieces_text((3,)), pieces_text((0, 1, 2, 6))
    ('chunk 3', 'chunks 0-2,6')
    """
    return f"chunk {pieces[0]}" if len(pieces) == 1 else f"chunks {ranges_text(pieces)}"


def ranges_text(numbers: tuple[int, ...]) -> str:
    """Numbers in order, neighbours joined."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def message_picture(program: CollectiveProgram, *, title: str, payload_bytes: float, note: str = "") -> MessagePicture:
    """Every message of a collective."""
    return MessagePicture(
        title=title,
        rank_names=tuple(str(rank) for rank in range(program.num_ranks)),
        rounds=tuple(
            MessageRound(title=f"step {number}", messages=round_messages(program, indices, payload_bytes))
            for number, indices in enumerate(program.rounds, start=1)
        ),
        note=note,
    )


def step_of_round(program: CollectiveProgram, state: RoundState, *, title: str, payload_bytes: float) -> LessonStep:
    """A round with its messages and what every rank holds after it."""
    return LessonStep(
        title=title,
        messages=round_messages(program, program.rounds[state.round_index], payload_bytes),
        table=held_table(program, state),
    )


def held_table(program: CollectiveProgram, state: RoundState) -> LessonTable:
    """The ranks whose numbers each rank holds in each chunk; ``sum`` when a chunk holds all of them."""
    head = " | ".join(("rank", *(f"chunk {piece}" for piece in range(program.num_pieces))))
    rows = tuple(
        (
            str(rank),
            *(
                _held_text(state.contributors.get((rank, piece)), program.num_ranks)
                for piece in range(program.num_pieces)
            ),
        )
        for rank in range(program.num_ranks)
    )
    return LessonTable(title="whose numbers each rank holds, added up", head=head, rows=rows)


def _held_text(contributors: tuple[int, ...] | None, num_ranks: int) -> str:
    if contributors is None:
        return "-"
    return "sum" if contributors == tuple(range(num_ranks)) else ranges_text(contributors)
