"""What processes of tests use, imported once by the server they are forked from: then each starts in milliseconds."""

import multiprocessing
import os
from multiprocessing import forkserver
from pathlib import Path

MODULES = ["train.preloaded"]
TESTS = str(Path(__file__).parents[1])


def forks():
    """Makes processes by forking one server that has imported what all of them use.

    The server looks modules up on ``PYTHONPATH`` alone, and passes over what it does not find.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (TESTS, before) if part)
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return context
