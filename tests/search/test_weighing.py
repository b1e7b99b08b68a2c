"""Weighing few rows finds the same rows that fit as weighing all."""

import numpy as np
import pytest

from shardwise.search import weighing
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.probes import Probes
from shardwise.search.refinement import Refinement
from shardwise.search.time_estimate import TimeEstimate
from shardwise.search.weighing import Weighing


@pytest.fixture(params=[("llama-3.1-8b", "native", "8xh100-sxm"), ("mixtral-8x7b", "megatron", "4xdgx-a100-80")])
def weighed(request, make_question, decorated, monkeypatch):
    """Rows with their whole memory, and a weighing that looks at the smallest micro-batches first."""
    monkeypatch.setattr(weighing, "FEW_ROWS", 16)
    model, engine, cluster = request.param
    question = make_question(model=model, engine=engine, cluster=cluster, global_batch_size=96)
    pool = decorated(question)
    memory = MemoryEstimate(probes=Probes(question=question))
    plain, ways = pool.rows.take(slice(None, None, 3)), [(mode, 0) for mode in range(3)]
    refinement = Refinement(TimeEstimate(memory=memory), plain, pool.num_microbatches[::3], ways=ways)
    assert refinement.take(np.arange(len(pool))).recompute.tolist() == pool.rows.recompute.tolist()
    capacity_bytes = question.cluster.gpu.memory_bytes
    return pool, Weighing(refinement=refinement, memory=memory, capacity_bytes=capacity_bytes)


def test_the_same_rows_fit(weighed):
    pool, found = weighed
    fits = np.flatnonzero(pool.needed_bytes <= found.capacity_bytes)
    assert 0 < len(fits) < len(pool)
    assert found.weigh(np.arange(len(pool))).tolist() == fits.tolist()
    assert np.array_equal(found.refinement.needed_bytes[fits], pool.needed_bytes[fits])
    assert (found.refinement.needed_bytes <= pool.needed_bytes).all()


def test_the_row_that_lacks_least_is_found_among_those_that_clearly_do_not_fit(weighed):
    pool, found = weighed
    found.weigh(np.arange(len(pool)))
    too_big = np.flatnonzero(pool.needed_bytes > found.capacity_bytes)
    clear = pool.needed_bytes[too_big] > 1.02 * found.capacity_bytes
    assert pool.needed_bytes[found.lacks_least(too_big)].tolist() == [pool.needed_bytes[too_big[clear]].min()]
    assert not len(found.lacks_least(too_big[:0]))


def test_the_lightest_rows_come_first(weighed):
    pool, found = weighed
    found.weigh(np.arange(len(pool)))
    lightest = found.lightest(np.arange(len(pool)), most=5)
    assert np.allclose(pool.needed_bytes[lightest], np.sort(pool.needed_bytes)[:5], rtol=1e-12)
