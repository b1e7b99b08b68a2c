"""Two processes that run the same search side by side and divide its heavy parts.

Both run every line, so neither has to be told what the other knows; at :meth:`Team.each` one begins with the first
item, the other with the last, until they meet, and they exchange what came out. What a search asks there are pure
functions, so it makes no difference who evaluates them: the answer is the same with one process and with two.

The process that asked leads. It never depends on the other one: when the follower is gone, because its share failed or
because it was killed, or when no processor is free for it, so that waiting has taken longer than doing everything
alone, the leader goes on alone, and meets what failed at its own place in the work.
"""

import mmap
import os
import pickle
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar

from shardwise.collector import paused_collector
from shardwise.units import Seconds

__all__ = ["ALONE", "MEMBERS", "Team", "in_team", "num_usable_cpus"]

Item = TypeVar("Item", bound=Hashable)
Done = TypeVar("Done")

LOAD = Path("/proc/loadavg")
"""Its fourth word is how many processes of the machine run or wait for a processor, of how many."""
MEMBERS = 2
FAILED = 1
PATIENCE_S = 0.03
"""What the leader may lose by waiting for the follower: a few turns of a scheduler."""
OWN_THREADS = Path("/proc/self/task")
LOOKS, BETWEEN_LOOKS_S = 5, 0.0005
"""How often it is looked whether a processor is free: what the system does for itself is over in the next moment."""
NICENESS = 10
"""Of the follower, which is meant for a processor that nobody needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channel:
    """What a member shares with the other one: the ends of two pipes, and how far each of them is."""

    incoming: BinaryIO
    outgoing: BinaryIO
    claims: memoryview
    """In memory of both, of the leader and of the follower: the number of the exchange, and of items begun in it."""

    def send(self, message: object) -> None:
        """Write a message; returns when the pipe has taken it."""
        pickle.dump(message, self.outgoing, protocol=pickle.HIGHEST_PROTOCOL)
        self.outgoing.flush()

    def is_ready(self, *, within_s: Seconds) -> bool:
        """Whether a message arrives, or the other end is closed, within a time."""
        return bool(select.select([self.incoming], [], [], within_s)[0])

    def receive(self) -> object:
        """Wait for a message."""
        return pickle.load(self.incoming)

    def close(self) -> None:
        """Nothing more is sent or read."""
        for end in (self.incoming, self.outgoing):
            with suppress(OSError):
                end.close()


class Team:
    """A member's view of the processes that share a search."""

    def __init__(self, channel: Channel | None = None, *, follower: int | None = None) -> None:
        """A process alone, or one of two with its ends of the channel between them.

        Args:
            channel: to the other member.
            follower: its process id, for the one that leads.
        """
        self._channel = channel
        self._follower = follower
        self.leads = channel is None or follower is not None
        """Whether the answer is for this process; the follower's is thrown away."""
        self.is_divided = False
        """While a member does its share; what it asks meanwhile it does alone."""
        self._num_exchanges = 0
        self._patience_s = PATIENCE_S
        """How long the leader may still wait: as long as it has worked itself, on top of what it may lose."""

    @property
    def is_alone(self) -> bool:
        """Whether no other process shares the work."""
        return self._channel is None

    @property
    def divides(self) -> bool:
        """Whether the other process does part of what is asked now."""
        return self._channel is not None and not self.is_divided

    def each(self, work: Callable[[Item], Done], items: Sequence[Item]) -> list[Done]:
        """What ``work`` makes of every item, in order; each item is done by one member.

        Args:
            work: a pure function, whose results are sent from process to process.
            items: the same in both members.
        """
        channel = self._channel
        if channel is None or self.is_divided or len(items) < MEMBERS:
            return [work(item) for item in items]
        started_s = time.perf_counter()
        own = self._own_share(work, items, channel)
        done_s = time.perf_counter()
        self._patience_s += done_s - started_s
        other = self._exchanged(hash(tuple(items)), own, channel)
        self._patience_s -= time.perf_counter() - done_s
        if other is None:
            self._part()
            return [*own, *(work(item) for item in items[len(own) :])]
        front, back = (own, other) if self.leads else (other, own)
        between = [work(item) for item in items[len(front) : len(items) - len(back)]]
        return [*front, *between, *back[::-1][max(0, len(front) + len(back) - len(items)) :]]

    def _own_share(self, work: Callable[[Item], Done], items: Sequence[Item], channel: Channel) -> list[Done]:
        """What this member did, from the front or from the back, before it met the other one.

        Nobody waits for a claim to be seen: where the two meet, both may do the same item.
        """
        self._num_exchanges += 1
        done: list[Done] = []
        mine, theirs = (0, 2) if self.leads else (2, 0)
        channel.claims[mine + 1] = 0
        channel.claims[mine] = self._num_exchanges
        self.is_divided = True
        try:
            for item in items if self.leads else items[::-1]:
                is_there = channel.claims[theirs] == self._num_exchanges
                if is_there and len(done) + channel.claims[theirs + 1] >= len(items):
                    break
                channel.claims[mine + 1] = len(done) + 1
                done.append(work(item))
        except BaseException:
            self._part()
            raise
        finally:
            self.is_divided = False
        return done

    def _exchanged(self, asked: int, own: list[Done], channel: Channel) -> list[Done] | None:
        """The other share; ``None`` when the other member is late, gone, or was asked about other items.

        The follower speaks first, so that the two never both wait for a full pipe to be emptied.
        """
        if self.leads and not channel.is_ready(within_s=max(0.0, self._patience_s)):
            return None
        try:
            if not self.leads:
                channel.send((asked, own))
            answer = channel.receive()
            if self.leads:
                channel.send((asked, own))
        except (EOFError, OSError, pickle.UnpicklingError):
            return None
        match answer:
            case (other_asked, list() as other) if other_asked == asked:
                return other
        return None

    def _part(self) -> None:
        """Go on alone. A follower ends, since nobody waits for what it does alone."""
        if self._follower is None:
            os._exit(FAILED)
        self.end()

    def end(self) -> None:
        """Let the follower do nothing more."""
        if self._channel is not None and self._follower is not None:
            os.kill(self._follower, signal.SIGKILL)
            os.waitpid(self._follower, 0)
            self._channel.close()
            self._channel = None


ALONE = Team()


def in_team(work: Callable[[Team], Done], *, num_processes: int) -> Done:
    """What ``work`` returns, with a second process beside this one while it runs.

    The second process is a fork, which takes milliseconds and knows what this one knows. It prints nothing, steps back
    where processors are in demand, and ends with this call, whatever ends it. One process does everything where only
    one is asked for, where all processors are busy, where the system cannot fork or does it badly, and where other
    threads run, whose locks a fork would take along.

    Args:
        work: what to do; it changes nothing outside but through the member that leads.
        num_processes: more than one to have the second.
    """
    with paused_collector():
        return _in_team(work) if num_processes >= MEMBERS and _can_fork() and _is_any_idle() else work(ALONE)


def _in_team(work: Callable[[Team], Done]) -> Done:
    """What ``work`` returns, with a follower."""
    to_leader, to_follower = os.pipe(), os.pipe()
    claims = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast("q")
    follower = _forked()
    if not follower:
        _follow(work, _channel(to_follower, to_leader, claims))
    team = Team(_channel(to_leader, to_follower, claims), follower=follower)
    try:
        return work(team)
    finally:
        team.end()


def num_usable_cpus() -> int:
    """Processors that the system lets this process run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _can_fork() -> bool:
    """macOS has a fork, but its libraries do not survive it."""
    return sys.platform == "linux" and threading.active_count() == 1


def _is_any_idle() -> bool:
    """Whether others leave processors for all members, at one of a few moments.

    Threads of this process are no others: those that NumPy starts for BLAS keep a processor busy for a tenth of a
    second, in which they wait for work and get none.
    """
    for look in range(LOOKS):
        if look:
            time.sleep(BETWEEN_LOOKS_S)
        num_running = int(LOAD.read_text(encoding="ascii").split()[3].partition("/")[0])
        if num_running - _num_own_running() + MEMBERS <= (os.cpu_count() or 1):
            return True
    return False


def _num_own_running() -> int:
    """Threads of this process that run or wait for a processor."""
    count = 0
    for thread in OWN_THREADS.iterdir():
        with suppress(OSError):  # it may end meanwhile
            count += (thread / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "R"
    return count


def _forked() -> int:
    """The process id of the follower, 0 in the follower."""
    with warnings.catch_warnings():
        # Python warns of threads that are not its own: those of BLAS, which stops them before a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _channel(incoming: tuple[int, int], outgoing: tuple[int, int], claims: memoryview) -> Channel:
    """Own ends of two pipes; the others are closed, so that the end of either process is seen by the other."""
    os.close(incoming[1])
    os.close(outgoing[0])
    return Channel(incoming=os.fdopen(incoming[0], "rb"), outgoing=os.fdopen(outgoing[1], "wb"), claims=claims)


def _follow(work: Callable[[Team], object], channel: Channel) -> NoReturn:
    """Take part, and end without the clean-up that belongs to the leader; what fails is met by the leader, too."""
    os.nice(NICENESS)
    try:
        work(Team(channel))
    finally:
        os._exit(FAILED)
