"""The names under which our runtime marks the phases of a step for the profiler."""

from typing import Final

FORWARD: Final = "shardwise::forward"
"""The whole model or one pipeline chunk, loss included."""
LOSS: Final = "shardwise::loss"
"""Output projection and loss, inside forward."""
BLOCK: Final = "shardwise::block"
"""A block that forgets what it computed; outside forward it is being computed again."""
OPTIMIZER: Final = "shardwise::optimizer"
"""Everything after the last backward: sums over ranks, clipping, the update."""
STEP: Final = "ProfilerStep#"
"""The profiler's own mark, which the reader of traces knows."""
