"""Questions of several shapes: dense and mixture of experts, three engines, one node and many."""

from collections.abc import Callable

import pytest

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import EngineName, Plan
from shardwise.recipe import Recipe

MakeQuestion = Callable[..., Plan]


@pytest.fixture(scope="session")
def make_question() -> MakeQuestion:
    """A plan without a layout, as a search asks it."""

    def build(
        *,
        model: str = "llama-3.1-8b",
        cluster: str = "8xh100-sxm",
        engine: EngineName = "native",
        seq_len: int = 4096,
        global_batch_size: int = 64,
        **recipe: object,
    ) -> Plan:
        return Plan(
            model=read_model(model),
            cluster=read_cluster(cluster),
            recipe=Recipe(seq_len=seq_len, global_batch_size=global_batch_size, **recipe),
            layout=Layout(),
            engine=engine,
        )

    return build
