"""Train one configuration as ``train_runs.py`` does, in a process that imported everything before its turn came.

    PYTHONPATH=src python benchmarks/gpu/in_turn.py --suite blind --only NAME --out runs.jsonl

Processes that are started together take the GPU one after the other: a lock in ``/tmp`` says whose turn it is.
"""

import fcntl
import os
import sys
from pathlib import Path

import train_runs

TURN = Path("/tmp/shardwise-turn.lock")

if __name__ == "__main__":
    with TURN.open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        port = str(29500 + os.getpid() % 1000)
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update(alone)
        sys.exit(train_runs.main())
