"""What ranks are forked from outlasts a signal to every process; ranks and everybody else hear it."""

import os
import subprocess
import sys

from shardwise.train.lasting import VARIABLE

PROGRAM = """
import os, signal, shardwise.train.lasting
print(signal.getsignal(signal.SIGTERM).name, flush=True)
if os.fork() == 0:
    print(signal.getsignal(signal.SIGTERM).name, flush=True)
    os._exit(0)
os.wait()
"""


def handlers(**variables):
    """Of the process that imports the module and of one that is forked from it."""
    environment = {**os.environ, **variables}
    said = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return said.stdout.split()


def test_the_fork_server_is_deaf_to_sigterm_and_its_ranks_are_not():
    assert handlers(**{VARIABLE: "1"}) == ["SIG_IGN", "SIG_DFL"]


def test_whoever_else_imports_it_hears_signals():
    assert handlers() == ["SIG_DFL", "SIG_DFL"]
