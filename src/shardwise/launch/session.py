"""The processes that a command starts: one group of this machine, of which nothing outlives the command."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import BinaryIO

from shardwise.train.failure.keepers import KEEPERS_VARIABLE, LAUNCHER, TORCHRUN, Keeper, keepers_text

__all__ = ["end_session", "killed_torchrun", "session"]


@contextmanager
def session(words: Sequence[str], *, added: Mapping[str, str], log: BinaryIO) -> Iterator["subprocess.Popen[bytes]"]:
    """The torchrun that the words start, in a session of its own: a Ctrl-C of the terminal reaches only us.

    Its ranks end when this process is killed; all of them end when this context does.
    """
    kept = {KEEPERS_VARIABLE: keepers_text({LAUNCHER: os.getpid()}, inherited={})}
    process = subprocess.Popen(
        words, env={**os.environ, **added, **kept}, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        yield process
    finally:
        end_session(process)
        process.wait()


def end_session(process: "subprocess.Popen[bytes]") -> None:
    """End torchrun and what it started in its session at once, also where torchrun itself is gone already."""
    with suppress(ProcessLookupError, PermissionError):  # nothing is left, or on macOS what nobody has waited for yet
        os.killpg(process.pid, signal.SIGKILL)


def killed_torchrun(process: "subprocess.Popen[bytes]") -> str:
    """Torchrun, by name and number, where a signal ended it; empty where it ended by itself, or still runs."""
    is_killed = process.returncode is not None and process.returncode < 0
    return str(Keeper(name=TORCHRUN, pid=process.pid)) if is_killed else ""
