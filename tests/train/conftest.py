"""One world of processes per size, kept for the whole session."""

import pytest

from train.models import LLAMA, MIXTRAL, make_job
from train.world import World
from train.world_member import run


@pytest.fixture(scope="session")
def worlds():
    """Worlds of 1, 2 and 4 processes."""
    made = {size: World(size) for size in (1, 2, 4)}
    yield made
    for world in made.values():
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
