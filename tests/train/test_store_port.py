"""The port of a run on one machine is kept from others until rank 0 listens there."""

import os
import socket
import subprocess
import sys

import pytest

from shardwise.train import group
from shardwise.train.store_port import STORE_PORT_VARIABLE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no socket can keep a port for another one")

HOLDS = f"""
import os, socket
from shardwise.train.store_port import hold_store_port
hold_store_port()
first = os.environ[{STORE_PORT_VARIABLE!r}]
hold_store_port()
assert os.environ[{STORE_PORT_VARIABLE!r}] == first
print(first, flush=True)
input()
"""


@pytest.fixture
def port():
    """One that another process keeps."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", HOLDS], **pipes)
    yield int(process.stdout.readline())
    process.communicate("\n")
    assert process.returncode == 0


def test_nobody_gets_it_and_rank_0_does(port):
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.create_server(("127.0.0.1", port)) as store, socket.create_connection(("127.0.0.1", port)):
        store.accept()[0].close()


@pytest.mark.parametrize(("held", "taken"), [({STORE_PORT_VARIABLE: "7"}, 7), ({}, 8)], ids=["kept", "torchrun's"])
def test_ranks_meet_at_the_port_that_is_kept_for_them(monkeypatch, held, taken):
    found = []
    monkeypatch.setattr(group, "_store_of_this_machine", lambda rank, *, port, timeout: found.append(port))
    monkeypatch.setattr(group.dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(os, "environ", {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2", "RANK": "0", "MASTER_PORT": "8"})
    os.environ |= held
    group.join_group(device_type="cpu", timeout=None)
    assert found == [taken]
