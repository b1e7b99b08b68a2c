"""Real runs, one of whose processes is killed: which processes there are, by their part in the run, and who is left."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

from launch.desk import LIMIT_S

MARK = "SHARDWISE_TEST_MARK"
"""In the environment of every process of one run."""
LISTENS, LOOPBACK = "0A", "0100007F"
ON_DEATH_OF = {
    "torchrun": "torchrun (process {pid}) died without a word",
    "fork server": "the process that ranks are forked from (process {pid}) died without a word",
    "tracker": "Python's resource tracker (process {pid}) died without a word",
    "rank": "(process {pid} on",
}
"""What the program that started the run says."""


class Run:
    """A command with the processes that it starts."""

    def __init__(self, words, folder, environment=()):
        self.mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            list(map(str, words)),
            cwd=folder,
            env={
                **os.environ,
                "XDG_CACHE_HOME": str(folder / "cache"),
                MARK: self.mark,
                **dict(environment),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def processes(self):
        """The process ids of the run by part, those that live."""
        parts = {}
        for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
            with contextlib.suppress(OSError, IndexError):
                if f"{MARK}={self.mark}".encode() not in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    continue
                state, parent = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:2]
                words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if state != "Z":
                    parts[pid] = (int(parent), words)
        return self._by_part(parts)

    def listening(self):
        """The addresses of this machine at which processes of the run wait for connections, as Linux writes them."""
        own = set()
        for pid in (pid for pids in self.processes().values() for pid in pids):
            with contextlib.suppress(OSError):
                own |= {entry.readlink().name for entry in Path(f"/proc/{pid}/fd").iterdir()}
        rows = [
            line.split()
            for family in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{family}").read_text(encoding="utf-8").splitlines()[1:]
        ]
        return {row[1].partition(":")[0] for row in rows if row[3] == LISTENS and f"socket:[{row[9]}]" in own}

    def _by_part(self, parts):
        found = {}
        for pid, (parent, words) in parts.items():
            if pid == self.process.pid:
                part = "launcher"
            elif "_torchrun" in words:
                part = "torchrun"
            elif "resource_tracker" in words:
                part = "tracker"
            elif "multiprocessing.forkserver" in words:
                part = "rank" if "multiprocessing.forkserver" in parts.get(parent, (0, ""))[1] else "fork server"
            else:
                part = "rank" if "worker" in words else "other"
            found.setdefault(part, []).append(pid)
        return found

    def wait_for(self, is_there, what):
        """Until the run is so far."""
        deadline = time.monotonic() + LIMIT_S
        while not (found := is_there()):
            assert time.monotonic() < deadline, f"the run did not come to {what}"
            assert self.process.poll() is None, f"before {what}: {self.process.stderr.read()}"
            time.sleep(0.05)
        return found

    def kill(self, part, *, number=signal.SIGKILL, chosen=0):
        """Kill a process of the run; its id."""
        pids = self.wait_for(lambda: self.processes().get(part), f"a {part}")
        pid = sorted(pids)[chosen % len(pids)]
        os.kill(pid, number)
        return pid

    def ends(self):
        """What the run says at its end, and the processes that outlive it; they are killed.

        On a quiet machine a group ends within five seconds.
        """
        deadline = time.monotonic() + LIMIT_S
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in (pid for pids in left.values() for pid in pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self.process.communicate()[1], left


def train(folder, plan, *words):
    """``shardwise train`` with a run folder and options."""
    common = ("--device", "cpu", "--data", "corpus.jsonl", "--learning-rate", "1e-3")
    return Run([sys.executable, "-m", "shardwise", "train", plan, *common, *words], folder)


def num_steps(run_folder):
    """Finished steps of a run."""
    path = run_folder / "metrics.jsonl"
    whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n") if path.exists() else ("", "", "")
    return json.loads(whole.rpartition("\n")[2])["step"] if whole else 0
