"""Lines that rank 0 prints of its steps where no ``shardwise train`` follows the run and shows a bar."""

import sys
import time
from dataclasses import asdict

from shardwise.render.step_text import step_text
from shardwise.train.metrics import StepRecord

BETWEEN_S = 1.0
"""Least time between two lines, so that short steps do not fill a scheduler's log."""


class StepLines:
    """Prints a line on standard error for a step: the first one, the last one, and at most one a second between."""

    def __init__(self, *, num_steps: int) -> None:
        self.num_steps = num_steps
        self._printed_s = float("-inf")

    def add(self, record: StepRecord) -> None:
        """Print the line of a step."""
        now_s = time.monotonic()
        is_due = now_s - self._printed_s >= BETWEEN_S or record.validation_loss is not None
        if is_due or record.step == self.num_steps:
            self._printed_s = now_s
            sys.stderr.write(f"step {record.step}/{self.num_steps}  {step_text(asdict(record))}\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Nothing is pending."""
