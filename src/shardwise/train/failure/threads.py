"""What to say where a process may start no more threads: which limit it met, and how to raise it."""

import resource

__all__ = ["NO_THREAD", "thread_sentences"]

NO_THREAD = ("can't start new thread", "pthread_create", "resource temporarily unavailable")
"""What Python and the C++ library say, in lower case; the last is all that a thread of torch or gloo leaves."""
LIMITS = (("ulimit -v", resource.RLIMIT_AS, 1024, " KiB of address space"), ("ulimit -u", resource.RLIMIT_NPROC, 1, ""))


def thread_sentences(rank: int | None, said: str) -> tuple[str, str]:
    """The message and the fix, with the limits of this process, which ranks that it starts inherit."""
    found = {
        f"{name} is {soft // unit:,}{of}": f"{name} unlimited"
        for name, kind, unit, of in LIMITS
        if (soft := resource.getrlimit(kind)[0]) != resource.RLIM_INFINITY
    }
    who = "a process of the run" if rank is None else f"rank {rank}"
    limits = "; ".join(found) or "no limit of this shell is set, so that a container's or the machine's was met"
    fix = " and ".join(found.values()) if found else "raise the container's limit of processes (its pids.max)"
    return f"{who} could start no more threads ({said}): {limits}", f"{fix}, or use fewer ranks on this machine"
