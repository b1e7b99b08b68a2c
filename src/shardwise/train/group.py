"""How ranks find each other: over the network on many nodes, over the loopback interface alone on one machine."""

import os
import socket
from datetime import timedelta

import torch.distributed as dist

from shardwise.train.store_port import STORE_PORT_VARIABLE

__all__ = ["join_group"]

LOOPBACK = "127.0.0.1"
LOOPBACK_NAMES = ("lo", "lo0")


def join_group(*, device_type: str, timeout: timedelta) -> None:
    """Make the process group of the ranks that torchrun started.

    torch's store for the ranks listens on every interface, and torch unpickles what the store holds. Where all ranks
    are on this machine, rank 0 therefore serves a store on the loopback interface alone. A torchrun that serves a store
    itself has taken the port; it does so without the variables that the launcher sets.
    """
    backend = "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"
    is_one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    if not is_one_machine or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        dist.init_process_group(backend, timeout=timeout)
        return
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if name := next((name for _, name in socket.if_nameindex() if name in LOOPBACK_NAMES), ""):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    port = int(os.environ.get(STORE_PORT_VARIABLE) or os.environ["MASTER_PORT"])
    store = _store_of_this_machine(rank, port=port, timeout=timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


def _store_of_this_machine(rank: int, *, port: int, timeout: timedelta) -> dist.Store:
    """The store that rank 0 serves on the loopback interface."""
    if rank != 0:
        return dist.TCPStore(LOOPBACK, port, is_master=False, timeout=timeout)
    listening = socket.create_server((LOOPBACK, port)).detach()
    return dist.TCPStore(
        LOOPBACK, port, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listening
    )
