"""How much work something is, counted in calls: the same on any machine, however busy. Seconds are for benchmarks."""

import runpy
import subprocess
import sys
from collections.abc import Callable


def count_calls(work: Callable[[], object]) -> int:
    """How many functions, of Python's and of C's, are called until ``work`` ends or exits."""
    count = 0

    def see(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        work()
    except SystemExit:
        pass
    finally:
        sys.setprofile(before)
    return count


def count_calls_of_a_start(words: list[str]) -> int:
    """The calls of ``python -m shardwise WORDS`` in a process of its own, its imports with it."""
    command = [sys.executable, __file__, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stderr.splitlines()[-1])


if __name__ == "__main__":
    sys.argv[0] = "shardwise"
    sys.stderr.write(f"{count_calls(lambda: runpy.run_module('shardwise', run_name='__main__'))}\n")
