"""torchrun with ranks that are forked from one process which has imported what all of them use.

``python -m shardwise.train.forked_torchrun MODULE,… NUM_PROCESSES WORD…`` is ``torchrun --standalone
--nproc-per-node=NUM_PROCESSES --start-method=forkserver --run-path MODULE WORD…``: rendezvous, variables, signals, exit
codes and the end of all after the end of one are torchrun's own. Modules after the first are imported as well.

The process that is forked does nothing but import: it has one thread, joins no group and touches no GPU.
"""

import os
import sys
from multiprocessing import forkserver, resource_tracker, set_forkserver_preload
from pathlib import Path

import shardwise
from shardwise.train.failure.keepers import KEEPERS_VARIABLE, TORCHRUN, TRACKER, keepers_text
from shardwise.train.lasting import VARIABLE
from shardwise.train.store_port import hold_store_port

LASTING = "shardwise.train.lasting"
ALWAYS = ("torch.distributed.run", "torch.profiler", "numpy.ma")
"""Where torchrun's entry function stands, and what every rank imports in its first steps."""


def main(words: list[str]) -> None:
    """Run torchrun with ranks that are forked."""
    modules = words[0].split(",")
    os.environ["PYTHONUNBUFFERED"] = "1"  # torchrun's own processes do not hold back what they say either
    set_forkserver_preload([LASTING, *modules, *ALWAYS])
    resource_tracker.ensure_running()
    tracker = resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    os.environ[KEEPERS_VARIABLE] = keepers_text({TRACKER: tracker, TORCHRUN: os.getpid()}, inherited=os.environ)
    hold_store_port()
    os.environ[VARIABLE] = "1"
    forkserver.ensure_running()  # it imports while this process imports torchrun
    del os.environ[VARIABLE]
    from shardwise.train.patient_torchrun import run_torchrun  # noqa: PLC0415 - after the server was started

    options = ["--standalone", f"--nproc-per-node={words[1]}", "--start-method=forkserver", "--run-path"]
    run_torchrun([*options, str(source_of(modules[0])), *words[2:]])


def source_of(module: str) -> Path:
    """The file of a module of ours: finding it otherwise would import the packages around it."""
    return Path(shardwise.__file__).resolve().parent.joinpath(*module.split(".")[1:]).with_suffix(".py")


if __name__ == "__main__":
    main(sys.argv[1:])
