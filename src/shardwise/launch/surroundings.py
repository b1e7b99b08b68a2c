"""What a run will find where it starts: variables, versions, devices, limits, network."""

import os
import resource
import shutil
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from shardwise.errors import PlanError
from shardwise.train.job import DeviceKind
from shardwise.units import Bytes

__all__ = ["Surroundings", "may_fork", "read_surroundings", "require_allocator", "require_recorders", "uses_gpus"]

PACKAGES = ("torch", "transformers", "safetensors", "triton")
TENSORBOARD, WANDB = "tensorboard", "wandb"
SHARED_MEMORY = Path("/dev/shm")
WAITING_OPTION = "--shutdown-timeout"
COMPILERS = ("c++", "g++", "clang++")


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The machine and the shell a run is started from."""

    variables: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    """Installed version of each package that training uses."""
    num_cores: int = 1
    num_gpus: int = 0
    """Devices this process may use: those of the machine that ``CUDA_VISIBLE_DEVICES`` leaves."""
    shared_memory_bytes: Bytes | None = None
    """Size of ``/dev/shm``; ``None`` where there is none."""
    free_disk_bytes: Bytes | None = None
    """Free bytes on the disk of the run folder."""
    max_open_files: int | None = None
    max_locked_bytes: Bytes | None = None
    """``None`` means without limit."""
    interfaces: tuple[str, ...] = ()
    host_address: str = ""
    """Address that this machine's own name resolves to; empty when it does not."""
    has_compiler: bool = True
    torchrun_can_wait: bool = True
    """Whether torchrun can be told how long ranks may take to save after a signal."""


def require_recorders(*, tensorboard: bool, wandb: bool) -> None:
    """Return when what a run is recorded for besides its own metrics can be written here.

    Raises:
        PlanError: a package is not installed; better said before processes start.
    """
    fix = "pip install {}, or leave the option out: metrics.jsonl holds the same numbers"
    if tensorboard and find_spec(TENSORBOARD) is None:
        said = f"--tensorboard needs {TENSORBOARD}, which is not installed"
        raise PlanError(said, code="train-tensorboard", fix=fix.format(TENSORBOARD))
    if wandb and find_spec(WANDB) is None:
        said = f"--wandb needs {WANDB}, which is not installed"
        raise PlanError(said, code="train-wandb", fix=fix.format(WANDB))


def require_allocator(*, is_on_gpu: bool) -> None:
    """Return when the ranks will have an allocator whose history can be recorded.

    Raises:
        PlanError: the ranks train on CPUs, whose allocator keeps no history.
    """
    if not is_on_gpu:
        raise PlanError(
            "--memory-snapshot records the history of CUDA's allocator, and this run is on CPUs, which have none",
            code="train-memory-snapshot",
            fix="leave it out: the measurement names what memory holds at its peak, on CPUs as well",
        )


def uses_gpus(device: DeviceKind) -> bool:
    """Whether processes that are started here find GPUs."""
    return device == "cuda" or (device == "auto" and _num_gpus(os.environ) > 0)


def may_fork(device: DeviceKind) -> bool:
    """Whether processes that are started here may be forked from one that has imported torch.

    Not with GPUs, as nobody has tried it, and only on Linux, as system libraries elsewhere do not survive a fork; the
    locks of forked processes need shared memory.
    """
    return not uses_gpus(device) and sys.platform == "linux" and os.access(SHARED_MEMORY, os.W_OK | os.X_OK)


def read_surroundings(*, run_folder: Path = Path()) -> Surroundings:
    """Looks at the machine and the shell from which a run is started."""
    variables = dict(os.environ)
    return Surroundings(
        variables=variables,
        versions=_versions(),
        num_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        num_gpus=_num_gpus(variables),
        shared_memory_bytes=_total_bytes(SHARED_MEMORY),
        free_disk_bytes=_free_bytes(run_folder),
        max_open_files=_limit(resource.RLIMIT_NOFILE),
        max_locked_bytes=_limit(resource.RLIMIT_MEMLOCK),
        interfaces=tuple(name for _, name in socket.if_nameindex()),
        host_address=_host_address(),
        has_compiler=any(shutil.which(name) for name in (*COMPILERS, variables.get("CXX", "c++"))),
        torchrun_can_wait=_torchrun_has(WAITING_OPTION),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _torchrun_has(option: str) -> bool:
    """Whether torchrun's source has the option, read as text so that torch is not imported; true without torch."""
    found = find_spec("torch")
    source = Path(found.origin).parent / "distributed" / "run.py" if found and found.origin else None
    return source is None or not source.is_file() or f'"{option}"' in source.read_text(encoding="utf-8")


def _num_gpus(variables: Mapping[str, str]) -> int:
    """GPUs this process may use, counted by device files, so that neither torch nor a driver tool is asked."""
    num_devices = len([path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()])
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return num_devices
    return min(num_devices, len([part for part in visible.split(",") if part.strip() not in ("", "-1")]))


def _total_bytes(path: Path) -> Bytes | None:
    return shutil.disk_usage(path).total if path.is_dir() else None


def _free_bytes(path: Path) -> Bytes:
    """Free bytes on the disk of the nearest folder that exists."""
    folder = path.absolute()
    while not folder.is_dir():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _limit(kind: int) -> int | None:
    soft, _ = resource.getrlimit(kind)
    return None if soft == resource.RLIM_INFINITY else soft


def _host_address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""
