"""How long a collective takes when every message takes ``alpha + bytes / beta`` and links are not shared."""

from collections.abc import Callable
from dataclasses import dataclass

from shardwise.course.collectives.moves import CollectiveProgram
from shardwise.units import BytesPerSecond, Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTime:
    """Alpha and beta of the link between two ranks."""

    latency_s: Seconds
    bandwidth_bytes_per_s: BytesPerSecond

    def message_s(self, num_bytes: float) -> Seconds:
        """Time of one message."""
        return self.latency_s + num_bytes / self.bandwidth_bytes_per_s


LinkBetween = Callable[[int, int], LinkTime]


def one_link(link: LinkTime) -> LinkBetween:
    """Give every pair of ranks the same link."""
    return lambda _sender, _receiver: link


def links_of_nodes(*, ranks_per_node: int, inside: LinkTime, across: LinkTime) -> LinkBetween:
    """One link inside a node, another between nodes."""
    return lambda sender, receiver: inside if sender // ranks_per_node == receiver // ranks_per_node else across


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """When every message ends, and when the last one does."""

    total_s: Seconds
    starts_s: tuple[Seconds, ...]
    ends_s: tuple[Seconds, ...]


def time_collective(program: CollectiveProgram, *, payload_bytes: float, link_between: LinkBetween) -> CollectiveTime:
    """Each message starts when what it needs is there and neither its sender's nor its receiver's port is busy.

    Messages are taken round by round, so that a port serves them in that order.
    """
    piece_bytes = payload_bytes / program.num_pieces
    out_free = [0.0] * program.num_ranks
    in_free = [0.0] * program.num_ranks
    starts = [0.0] * len(program.messages)
    ends = [0.0] * len(program.messages)
    for indices in program.rounds:
        for index in indices:
            message = program.messages[index]
            ready_s = max((ends[before] for before in program.depends_on[index]), default=0.0)
            starts[index] = max(ready_s, out_free[message.sender], in_free[message.receiver])
            link = link_between(message.sender, message.receiver)
            ends[index] = starts[index] + link.message_s(piece_bytes * len(message.pieces))
            out_free[message.sender] = in_free[message.receiver] = ends[index]
    return CollectiveTime(total_s=max(ends, default=0.0), starts_s=tuple(starts), ends_s=tuple(ends))
