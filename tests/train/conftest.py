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
def alone(worlds):
    """What one process alone gets, in fp32: by model."""
    return {
        name: worlds[1].run(run, make_job(model=model))[0] for name, model in (("llama", LLAMA), ("mixtral", MIXTRAL))
    }
