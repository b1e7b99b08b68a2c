"""Imported by the process that ranks are forked from, which has to outlast them.

A scheduler that ends a job signals every process of it. The fork server would end at once, torchrun would take its
ranks for ended, and the run would be over while they still finish their step and save. It ends with torchrun all the
same: a pipe between the two is closed. What is forked from it hears signals again.
"""

import os
import signal

__all__ = ["VARIABLE"]

VARIABLE = "SHARDWISE_FORK_SERVER"
"""Variable that the fork server alone has; whoever else imports this module keeps hearing signals."""

if os.environ.get(VARIABLE):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
