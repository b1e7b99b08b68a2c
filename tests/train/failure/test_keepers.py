"""A rank knows the processes that it needs, notices which of them is gone, and ends with them."""

import json
import os
import subprocess
import sys
import time

import pytest

from shardwise.train.failure.keepers import (
    FORK_SERVER,
    KEEPERS_VARIABLE,
    LAUNCHER,
    TORCHRUN,
    TORCHRUN_VARIABLE,
    TRACKER,
    Keeper,
    keepers,
    keepers_text,
    lost_keeper,
)

SLEEPS = "import time; time.sleep(600)"
NOBODY = 2**22
"""Above every process id of Linux, which this process and its parents may have any of."""
WATCHES = """
import time
from shardwise.train.failure.keepers import end_with_keepers, keepers
end_with_keepers(keepers(), exit_code=7)
print("watches", flush=True)
time.sleep(600)
"""


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", SLEEPS])
    yield process
    process.kill()
    process.wait()


def test_a_rank_that_torchrun_started_by_itself_needs_it(monkeypatch):
    monkeypatch.delenv(KEEPERS_VARIABLE, raising=False)
    monkeypatch.setenv(TORCHRUN_VARIABLE, "none")
    assert keepers() == (Keeper(name=TORCHRUN, pid=os.getppid()),)


def test_a_rank_that_a_shell_or_a_scheduler_started_outlives_it(monkeypatch):
    monkeypatch.delenv(KEEPERS_VARIABLE, raising=False)
    monkeypatch.delenv(TORCHRUN_VARIABLE, raising=False)
    assert keepers() == ()


def test_the_parent_of_a_rank_is_what_it_was_forked_from_where_torchrun_is_another(monkeypatch):
    named = {LAUNCHER: NOBODY + 1, TORCHRUN: NOBODY + 2, TRACKER: NOBODY + 3}
    monkeypatch.setenv(KEEPERS_VARIABLE, json.dumps(named))
    monkeypatch.setenv(TORCHRUN_VARIABLE, "seven")
    assert [(keeper.name, keeper.pid) for keeper in keepers()] == [
        *((FORK_SERVER, os.getppid()), (TRACKER, NOBODY + 3)),
        *((TORCHRUN, NOBODY + 2), (LAUNCHER, NOBODY + 1)),
    ]


def test_each_program_adds_itself_to_those_that_started_it():
    outer = keepers_text({LAUNCHER: 11}, inherited={})
    assert json.loads(keepers_text({TORCHRUN: 12}, inherited={KEEPERS_VARIABLE: outer})) == {LAUNCHER: 11, TORCHRUN: 12}


def test_a_keeper_that_was_killed_is_lost_before_anybody_has_waited_for_it(sleeper):
    kept_by = (Keeper(name=LAUNCHER, pid=os.getpid()), Keeper(name=TORCHRUN, pid=sleeper.pid))
    assert lost_keeper(kept_by) is None
    sleeper.kill()
    deadline = time.monotonic() + 300
    while lost_keeper(kept_by) is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert str(lost_keeper(kept_by)) == f"torchrun (process {sleeper.pid})"


def test_a_process_with_nothing_to_save_ends_with_its_keeper_and_says_so(sleeper):
    environment = {**os.environ, KEEPERS_VARIABLE: json.dumps({LAUNCHER: sleeper.pid, TORCHRUN: os.getpid()})}
    process = subprocess.Popen(
        [sys.executable, "-c", WATCHES], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "watches\n"
    sleeper.kill()
    assert process.wait(300) == 7
    assert f"shardwise (process {sleeper.pid}) is gone" in process.communicate()[1]
