"""One world of processes per size, kept as long as a file has tests."""

import pytest
import torch

from train.models import LLAMA, MIXTRAL, make_job
from train.world import World
from train.world_member import run

WORLDS = {size: World(size) for size in (1, 2, 4)}


@pytest.fixture(scope="session")
def worlds():
    """Worlds of 1, 2 and 4 processes, which start when a job is sent to them."""
    return WORLDS


@pytest.fixture(autouse=True)
def own_draws():
    """A test draws the same numbers whatever other tests its process ran before."""
    torch.manual_seed(0)


def pytest_runtest_teardown(item, nextitem):
    """End all worlds after the last test of a file.

    Threads of gloo's groups wake up a hundred times a second: seven idle processes took an eighth of a core for as long
    as the session went on, and to start two or four of them anew takes 0.3 or 0.5 CPU seconds.
    """
    if nextitem is None or nextitem.path != item.path:
        for world in WORLDS.values():
            world.stop()


@pytest.fixture(scope="session")
def curve(worlds):
    """What rank 0 of a number of processes gets of a job; tests that compare with the same one share its run."""
    known = {}

    def get(size, **named):
        key = (size, repr(sorted(named.items())))
        if key not in known:
            known[key] = worlds[size].run(run, make_job(**named))[0]
        return known[key]

    return get


@pytest.fixture(scope="session")
def alone(curve):
    """What one process alone gets, in fp32: by model."""
    return {name: curve(1, model=model) for name, model in (("llama", LLAMA), ("mixtral", MIXTRAL))}
