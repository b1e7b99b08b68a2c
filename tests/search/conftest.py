"""Questions of several shapes: dense and mixture of experts, three engines, one node and many."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shardwise.catalog import read_cluster
from shardwise.engines.table import EngineName
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.search.bounds import SearchBounds
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.pool import Pool, lowest_choice
from shardwise.search.probes import Probes
from shardwise.search.space import Space
from shardwise.search.validity import valid_candidates

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


@pytest.fixture(scope="session")
def decorated() -> Callable[..., Pool]:
    """Every row of a question that breaks no rule, with each recompute mode and the memory it needs."""

    def build(question: Plan, **bounds: object) -> Pool:
        space = Space(question=question, bounds=SearchBounds(**bounds))
        valid = valid_candidates(space)
        numbers, copies = np.arange(len(valid.rows)), len(space.recomputes)
        layers = question.recipe.recompute_layers or 0
        plain = replace(valid.rows, offload=lowest_choice(valid.rows))
        rows = replace(
            plain.take(np.repeat(numbers, copies)),
            recompute=np.tile(space.recomputes, len(numbers)),
            recompute_layers=np.tile([layers if mode else 0 for mode in space.recomputes], len(numbers)),
        )
        counts = np.repeat(valid.num_microbatches, copies)
        return Pool.of(rows, counts, MemoryEstimate(probes=Probes(question=question)))

    return build
