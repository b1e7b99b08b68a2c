"""Worker processes that live as long as the test session: gloo, forkserver, jobs sent through pipes."""

import multiprocessing
import os
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

from train.preload import forks

JOB_TIMEOUT_S = 900.0


class World:
    """``size`` processes in one gloo group."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.members: list[tuple[multiprocessing.Process, Connection]] = []

    def run(self, function, *arguments):
        """What ``function(*arguments)`` returns on every rank; a failed or hung world is ended and built anew."""
        if not self.members:
            self._start()
        for _, pipe in self.members:
            pipe.send((function, arguments))
        answers = []
        for rank, (_, pipe) in enumerate(self.members):
            if not pipe.poll(JOB_TIMEOUT_S):
                self.stop()
                raise TimeoutError(f"rank {rank} did not answer within {JOB_TIMEOUT_S} s")
            kind, value = pipe.recv()
            if kind == "error":
                self.stop()
                raise AssertionError(f"rank {rank} failed:\n{value}")
            answers.append(value)
        return answers

    def _start(self) -> None:
        context = forks()
        rendezvous = Path(tempfile.mkdtemp(prefix="shardwise-world-")) / "rendezvous"
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, rank, self.size, str(rendezvous)), daemon=True)
            process.start()
            self.members.append((process, ours))

    def stop(self) -> None:
        """End every process."""
        for process, _ in self.members:
            process.kill()
            process.join()
        self.members = []


def serve(pipe: Connection, rank: int, size: int, rendezvous: str) -> None:
    """A member's life: join the group, then run what is sent until the pipe closes."""
    os.environ.update(
        OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", LOCAL_RANK=str(rank), RANK=str(rank), WORLD_SIZE=str(size)
    )
    from train.world_member import GROUPS, join_world

    join_world(rank, size, rendezvous)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("value", function(*arguments)))
            GROUPS.take_back()
        except Exception:  # noqa: BLE001 - the test that sent the job shall see it
            pipe.send(("error", traceback.format_exc()))
