"""An algorithm as a list of messages, and the rounds in which they can travel."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceMessage:
    """Pieces that one rank sends another in one message."""

    sender: int
    receiver: int
    pieces: tuple[int, ...]
    adds: bool
    """Whether the receiver adds the pieces to its own, or keeps them instead of its own."""


@dataclass(frozen=True, kw_only=True)
class CollectiveProgram:
    """All messages of one collective, in an order in which each finds what it needs.

    Messages that do not touch the same piece on the same rank are independent; which of them travel at the same time
    is worked out from that, not written down.
    """

    name: str
    num_ranks: int
    num_pieces: int
    """Equal parts of the payload."""
    messages: tuple[PieceMessage, ...]
    is_exchange: bool = False
    """Whether every piece has one sender and one receiver, as in an all-to-all."""

    @cached_property
    def depends_on(self) -> tuple[tuple[int, ...], ...]:
        """The messages that each message has to wait for.

        A message reads its pieces at the sender after they were written there, and writes them at the receiver after
        they were written and read there.
        """
        last_write: dict[tuple[int, int], int] = {}
        reads_since: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        found: list[tuple[int, ...]] = []
        for index, message in enumerate(self.messages):
            before: set[int] = set()
            for piece in message.pieces:
                source, target = (message.sender, piece), (message.receiver, piece)
                before.update(last_write[place] for place in (source, target) if place in last_write)
                before.update(reads_since[target])
            for piece in message.pieces:
                reads_since[message.sender, piece].append(index)
                last_write[message.receiver, piece] = index
                reads_since[message.receiver, piece] = []
            found.append(tuple(sorted(before)))
        return tuple(found)

    @cached_property
    def rounds(self) -> tuple[tuple[int, ...], ...]:
        """Messages that travel at the same time when all take equally long: each rank sends one and receives one."""
        waiting = list(range(len(self.messages)))
        round_of: dict[int, int] = {}
        rounds: list[tuple[int, ...]] = []
        while waiting:
            senders: set[int] = set()
            receivers: set[int] = set()
            chosen = []
            for index in waiting:
                message = self.messages[index]
                if message.sender in senders or message.receiver in receivers:
                    continue
                if any(round_of.get(before, len(rounds)) >= len(rounds) for before in self.depends_on[index]):
                    continue
                senders.add(message.sender)
                receivers.add(message.receiver)
                chosen.append(index)
            round_of.update(dict.fromkeys(chosen, len(rounds)))
            rounds.append(tuple(chosen))
            taken = set(chosen)
            waiting = [index for index in waiting if index not in taken]
        return tuple(rounds)

    def sent_fraction(self, rank: int) -> float:
        """Share of the payload that a rank sends in all."""
        return sum(len(one.pieces) for one in self.messages if one.sender == rank) / self.num_pieces
