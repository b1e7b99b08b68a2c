"""What to say where a process may start no more threads: which limits there are, and how to raise one."""

import resource
from collections.abc import Iterator
from pathlib import Path

__all__ = ["NO_THREAD", "thread_sentences"]

NO_THREAD = ("can't start new thread", "pthread_create", "resource temporarily unavailable")
"""Messages of Python and the C++ library when no thread can start, in lower case; threads of torch or gloo leave only
the last."""
LIMITS = (("ulimit -v", resource.RLIMIT_AS, 1024, " KiB of address space"), ("ulimit -u", resource.RLIMIT_NPROC, 1, ""))
PIDS_MAX = Path("/sys/fs/cgroup/pids.max")
"""A container's limit of processes and threads."""


def thread_sentences(rank: int | None, said: str) -> tuple[str, str]:
    """The message and the fix, with the limits of this process, which ranks that it starts inherit."""
    found = [*_of_shell(), *_of_container()]
    who = "a process of the run" if rank is None else f"rank {rank}"
    limits = "; ".join(limit for limit, _ in found) or "no limit of this shell or container is set, so the machine's is"
    fix = ", or ".join([*(way for _, way in found), "use fewer ranks on this machine"])
    return f"{who} could start no more threads ({said}): {limits}", fix


def _of_shell() -> Iterator[tuple[str, str]]:
    for name, kind, unit, of in LIMITS:
        soft, hard = resource.getrlimit(kind)
        if soft == resource.RLIM_INFINITY:
            continue
        most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard // unit)
        can_raise = hard == resource.RLIM_INFINITY or soft < hard
        yield f"{name} is {soft // unit:,}{of}", f"{name} {most}" if can_raise else f"have root raise {name}"


def _of_container() -> Iterator[tuple[str, str]]:
    try:
        most = PIDS_MAX.read_text(encoding="ascii").strip()
    except OSError:
        return
    if most.isdigit():
        yield f"the container's pids.max is {int(most):,}", "raise the container's pids.max"
