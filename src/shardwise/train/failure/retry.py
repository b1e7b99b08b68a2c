"""Decides whether a retry can mend a failure, and when the next attempt begins.

A rank that was killed, a hang and a lost connection can be gone at the next attempt. Memory that does not suffice, a
loss that is no number and bad input are there again, so that a retry would only bill the same hours twice.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.train.failure.record import failures_of
from shardwise.units import Seconds

__all__ = ["ATTEMPT_VARIABLE", "Attempt", "attempt_of", "next_attempt", "retry_text"]

ATTEMPT_VARIABLE = "SHARDWISE_ATTEMPT"
"""The variable in which ``run.sh`` tells its next start which attempt it is: its number, and the step that failed."""
MENDABLE = ("train-rank-died", "train-process-died", "train-hang", "train-failed")
UNEXPLAINED = "train-failed"
"""The code of an exception that nobody knows: one that comes again at the same step is no accident."""
FIRST_WAIT_S = 10.0
MAX_WAIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a run that may be started again."""

    num_restarts: int = 0
    """Restarts that were taken, this one included."""
    num_steps_before: int = -1
    """Steps that the attempt before had done when it failed with an unexplained exception; -1 where it did not."""
    wait_s: Seconds = 0.0
    """Seconds to wait before it begins."""

    def to_environment(self) -> dict[str, str]:
        """The variable that :func:`attempt_of` reads."""
        return {ATTEMPT_VARIABLE: f"{self.num_restarts}:{self.num_steps_before}"}


def attempt_of(variables: Mapping[str, str] = os.environ) -> Attempt:
    """The attempt that this process is, by its environment.

    >>> attempt_of({"SHARDWISE_ATTEMPT": "2:40"})
    Attempt(num_restarts=2, num_steps_before=40, wait_s=0.0)
    """
    number, _, step = variables.get(ATTEMPT_VARIABLE, "0:-1").partition(":")
    return Attempt(num_restarts=int(number), num_steps_before=int(step))


def next_attempt(error: ShardwiseError, *, folder: Path, num_restarts: int, before: Attempt) -> Attempt | None:
    """The attempt that follows a failure; ``None`` where none is left, or where none can mend it.

    Args:
        error: why the run failed.
        folder: the run folder, whose records say how far the ranks were.
        num_restarts: restarts that were allowed.
        before: the attempt that failed.
    """
    if before.num_restarts >= num_restarts or error.code not in MENDABLE:
        return None
    step = max((record.step for record in failures_of(folder)), default=0) if error.code == UNEXPLAINED else -1
    if error.code == UNEXPLAINED and step == before.num_steps_before:
        return None
    wait_s = min(MAX_WAIT_S, FIRST_WAIT_S * 2**before.num_restarts)
    return Attempt(num_restarts=before.num_restarts + 1, num_steps_before=step, wait_s=wait_s)


def retry_text(error: ShardwiseError, following: Attempt, *, num_restarts: int) -> str:
    """The sentence that the user reads between a failure and the attempt that follows it."""
    return f"{error.message}; restart {following.num_restarts} of {num_restarts} begins in {following.wait_s:.0f} s"
