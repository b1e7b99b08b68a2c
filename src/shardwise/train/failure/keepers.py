"""The keepers of a rank: the processes that started it, and that would end it and say what became of it.

They are the program that started torchrun, torchrun, and for forked ranks the process that they are forked from and the
one that releases what they share. Each of them can be killed without a word. A rank looks for all of them a few times a
second, as nothing tells it on every system that one is gone.
"""

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.train.failure.record import is_alive

__all__ = [
    "FORK_SERVER",
    "KEEPERS_VARIABLE",
    "LAUNCHER",
    "RESTART_VARIABLE",
    "TORCHRUN",
    "TORCHRUN_VARIABLE",
    "TRACKER",
    "Keeper",
    "end_with_keepers",
    "keepers",
    "keepers_text",
    "lost_keeper",
]

KEEPERS_VARIABLE = "SHARDWISE_KEEPERS"
"""Variable of the ranks of one machine that holds the process ids of their keepers by name."""
TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"
"""Variable that torchrun sets for the ranks it starts."""
RESTART_VARIABLE = "TORCHELASTIC_RESTART_COUNT"
"""How often torchrun has started the ranks again."""
LAUNCHER, TORCHRUN = "shardwise", "torchrun"
FORK_SERVER = "the process that ranks are forked from"
TRACKER = "Python's resource tracker"
OUTERMOST_LAST = (FORK_SERVER, TRACKER, TORCHRUN, LAUNCHER)
POLL_S = 0.5
ALONE = 1
"""The exit code of a process that ends because a keeper is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeper:
    """A process that a rank needs."""

    name: str
    pid: int

    def __str__(self) -> str:
        return f"{self.name} (process {self.pid})"


def keepers_text(added: Mapping[str, int], *, inherited: Mapping[str, str]) -> str:
    """The value of the variable with keepers added to those that the environment names.

    >>> keepers_text({"torchrun": 12}, inherited={"SHARDWISE_KEEPERS": '{"shardwise": 11}'})
    '{"shardwise": 11, "torchrun": 12}'
    """
    return json.dumps({**json.loads(inherited.get(KEEPERS_VARIABLE) or "{}"), **added})


def keepers() -> tuple[Keeper, ...]:
    """The keepers of this process, those first whose end takes others along.

    torchrun ends when its fork server is gone, and the program that started it when torchrun is. A rank that torchrun
    did not start may outlive its parent: a shell that somebody leaves, or a scheduler's.
    """
    named: dict[str, int] = json.loads(os.environ.get(KEEPERS_VARIABLE) or "{}")
    if (parent := os.getppid()) not in named.values() and TORCHRUN_VARIABLE in os.environ:
        named[FORK_SERVER if TORCHRUN in named else TORCHRUN] = parent
    return tuple(Keeper(name=name, pid=named[name]) for name in OUTERMOST_LAST if name in named)


def lost_keeper(kept_by: tuple[Keeper, ...]) -> Keeper | None:
    """The first of the keepers that is gone."""
    return next((keeper for keeper in kept_by if not is_alive(keeper.pid)), None)


def end_with_keepers(kept_by: tuple[Keeper, ...], *, exit_code: int = ALONE) -> None:
    """End this process at once, from now on, when one of its keepers is gone; it has nothing left to save."""

    def watch() -> None:
        while (lost := lost_keeper(kept_by)) is None:
            time.sleep(POLL_S)
        os.write(2, f"{lost} is gone: process {os.getpid()} ends\n".encode())
        os._exit(exit_code)

    threading.Thread(target=watch, name="shardwise-keepers", daemon=True).start()
