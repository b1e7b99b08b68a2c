"""A client of the SDK, connected to `shardwise mcp` in a process of its own."""

import os
import sys
from contextlib import ExitStack

import pytest
from anyio.from_thread import start_blocking_portal
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters


class Session:
    """A client of a server in its own process, for tests that are no coroutines."""

    def __init__(self, portal, client):
        self.portal, self.client = portal, client

    def __getattr__(self, name):
        return lambda *arguments: self.portal.call(getattr(self.client, name), *arguments)

    def call(self, name, arguments):
        result = self.call_tool(name, arguments)
        assert result.content[0].text
        return result.is_error, result.structured_content


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "shardwise", "mcp"], env=dict(os.environ), cwd=folder
    )
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())
        client = stack.enter_context(portal.wrap_async_context_manager(Client(parameters)))
        yield Session(portal, client)
