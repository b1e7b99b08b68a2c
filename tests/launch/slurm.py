"""A controller and a node of Slurm on this machine, without systemd, munge or an installation."""

import os
import re
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from getpass import getuser
from pathlib import Path

UNPACKED = Path(__file__).parents[2] / ".venv" / "slurm"
"""Where scripts/slurm.sh puts Debian's packages."""
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ReturnToService=2
MinJobAge=3600
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """The commands of a Slurm that runs."""

    def __init__(self, folder, *, variables):
        self.folder, self.variables = folder, variables

    def __call__(self, *words):
        """What a command prints."""
        done = subprocess.run(words, env=self.variables, capture_output=True, text=True, check=False, cwd=self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, *words):
        """The number of a job."""
        return self("sbatch", *words).split()[-1]

    def job(self, number):
        """What the controller says of a job, by the name of its field."""
        return dict(re.findall(r"(\w+)=(\S*)", self("scontrol", "show", "job", number)))

    def wait(self, number, *, until, limit_s):
        """The job's fields, once they satisfy ``until``; a job that was requeued need not wait its two minutes."""
        deadline = time.monotonic() + limit_s
        while not until(fields := self.job(number)):
            assert time.monotonic() < deadline, fields
            if fields["Reason"] == "BeginTime":
                self("scontrol", "update", f"JobId={number}", "StartTime=now")
            time.sleep(0.5)
        return fields


def missing():
    """What Slurm lacks here; empty where it can be started."""
    return "" if _programs() else "no slurmctld and slurmd here: make slurm"


def _programs():
    unpacked = UNPACKED / "usr" / "sbin"
    if (UNPACKED / ".complete").exists():
        return tuple(unpacked / f"{name}-wlm" for name in ("slurmctld", "slurmd", "slurmstepd"))
    found = [shutil.which(name) for name in ("slurmctld", "slurmd")]
    return (Path(found[0]), Path(found[1]), None) if all(found) else ()


@contextmanager
def slurm(folder):
    """A Slurm with one node of two CPUs, in a folder; its daemons end with the context."""
    controller, node, step = _programs()
    variables = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    config = CONFIG.format(host=socket.gethostname(), ports=_free_ports(), user=getuser(), folder=folder)
    if step is not None:
        libraries = next(UNPACKED.glob("usr/lib/*/slurm-wlm"))
        config += f"PluginDir={libraries}\n"
        variables["LD_LIBRARY_PATH"] = f"{libraries}:{libraries.parent}"
        variables["PATH"] = f"{UNPACKED / 'usr' / 'bin'}:{variables['PATH']}"
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    (folder / "slurm.conf").write_text(config, encoding="utf-8")
    variables["SLURM_CONF"] = str(folder / "slurm.conf")
    quiet = {"env": variables, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    daemons = [
        subprocess.Popen([controller, "-D", "-c"], **quiet),
        subprocess.Popen([node, "-D", *(("-d", step) if step is not None else ())], **quiet),
    ]
    try:
        started = Slurm(folder, variables=variables)
        deadline = time.monotonic() + 60
        while "idle" not in _state(started):
            assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()
            time.sleep(0.2)
        yield started
    finally:
        _cancel_all(variables)
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(timeout=300)


def _cancel_all(variables):
    """No job outlives its daemons; one that was asked to go has half a minute to save."""
    words = {"env": variables, "capture_output": True, "text": True}
    subprocess.run(["scancel", "--user", getuser()], check=False, **words)
    deadline = time.monotonic() + 60
    while subprocess.run(["squeue", "--noheader"], check=False, **words).stdout.strip() and time.monotonic() < deadline:
        time.sleep(0.2)


def _state(started):
    done = subprocess.run(
        ["sinfo", "--noheader", "--format=%t"], env=started.variables, capture_output=True, text=True, check=False
    )
    return done.stdout


def _free_ports():
    sockets = [socket.socket() for _ in range(2)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
