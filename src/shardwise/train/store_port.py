"""The port at which the ranks of one machine meet, kept from others until rank 0 listens there.

torchrun names a port that was free a moment before and lets it go; whoever opens a connection until rank 0 has started
may get it, and the run fails. A socket that is bound and does not listen keeps it for those who name it.
"""

import os
import socket
import sys
from functools import cache

__all__ = ["STORE_PORT_VARIABLE", "hold_store_port"]

STORE_PORT_VARIABLE = "SHARDWISE_STORE_PORT"
"""The variable in which a torchrun tells its ranks the port that it keeps; without it they take torchrun's own."""


@cache
def hold_store_port() -> None:
    """Keep a port of the loopback interface as long as this process lives, and name it for the ranks.

    Only Linux lets a second socket listen at a port that another one keeps.
    """
    if sys.platform != "linux":
        return
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    os.environ[STORE_PORT_VARIABLE] = str(held.getsockname()[1])
    held.detach()
