"""Pruning leaves every estimate that matters as it is: the refined rows against all rows estimated one by one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.recipe import Recipe
from shardwise.search.bounds import SearchBounds
from shardwise.search.cuts import Cuts
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.probes import Probes
from shardwise.search.refinement import Cutoffs, Refinement
from shardwise.search.space import Space
from shardwise.search.time_estimate import BOUND_FRACTION, TimeEstimate
from shardwise.search.validity import valid_candidates

ROUNDING = 1 + 1e-9

questions = st.builds(
    Plan,
    model=st.sampled_from(("llama-3.1-8b", "mixtral-8x7b", "gemma-2-9b", "llama-3.1-70b")).map(read_model),
    cluster=st.sampled_from(("8xa100-sxm-80", "16xh100-sxm", "8xdgx-h100", "6xh100-sxm")).map(read_cluster),
    recipe=st.builds(
        Recipe, seq_len=st.sampled_from((1024, 2048, 8192)), global_batch_size=st.sampled_from((48, 96, 384))
    ),
    layout=st.just(Layout()),
    engine=st.sampled_from(("native", "megatron", "deepspeed", "torchtitan")),
)


@settings(max_examples=6)
@given(question=questions, within=st.sampled_from((1.02, 1.12, 1.5)), front=st.sampled_from((1.5, 3.0)))
def test_refining_the_rows_that_matter_finds_what_estimating_all_rows_finds(decorated, question, within, front):
    pool = decorated(question, activation_offload=False, offload=("none",))
    if not len(pool):
        return
    memory = MemoryEstimate(probes=Probes(question=question))
    refinement = Refinement(Cuts(TimeEstimate(memory=memory), pool.rows), pool.rows, pool.num_microbatches)
    cutoffs = Cutoffs(within_ratio=within, front_ratio=front)
    refinement.needed_bytes = pool.needed_bytes
    refinement.run(cutoffs)
    every = TimeEstimate(memory=memory).step_s(pool.rows, num_microbatches=pool.num_microbatches)
    is_done = refinement.is_estimated
    assert np.allclose(refinement.step_s[is_done], every[is_done], rtol=1e-9)
    assert (refinement.step_s <= every * ROUNDING).all()
    assert is_done[every <= within * every.min()].all()
    done_s, done_bytes = every[is_done], pool.needed_bytes[is_done]
    for row in np.flatnonzero(~is_done & (every <= front * every.min())):
        least = done_bytes[done_s <= every[row]].min()
        assert pool.needed_bytes[row] >= (1 - cutoffs.front_step_fraction) * least / ROUNDING


def test_far_fewer_blocks_are_timed_than_there_are(make_question, decorated):
    question = make_question(model="llama-3.1-70b", cluster="16xdgx-h100", global_batch_size=256)
    pool = decorated(question, activation_offload=False, offload=("none",))
    pool = pool.take(pool.needed_bytes <= question.cluster.gpu.memory_bytes)
    memory = MemoryEstimate(probes=Probes(question=question))
    lazy, full = TimeEstimate(memory=memory), TimeEstimate(memory=memory)
    refinement = Refinement(Cuts(lazy, pool.rows), pool.rows, pool.num_microbatches)
    refinement.needed_bytes = pool.needed_bytes
    refinement.run(Cutoffs(within_ratio=1.1, front_ratio=1.1))
    full.step_s(pool.rows, num_microbatches=pool.num_microbatches)
    assert len(lazy.block_table) < 0.6 * len(full.block_table)
    assert np.count_nonzero(refinement.is_estimated) < 0.2 * len(pool)


@pytest.mark.parametrize(
    ("model", "cluster", "engine", "seq_len"),
    [("llama-3.1-8b", "6xh100-sxm", "torchtitan", 2048), ("mixtral-8x7b", "16xh100-sxm", "native", 8192)],
)
def test_a_wider_cut_bounds_a_narrower_one_whose_exchanges_hide_under_launches(
    make_question, model, cluster, engine, seq_len
):
    """With all that a wider cut waits for, its block is 15 % and 14 % slower per token than a narrower one's."""
    question = make_question(model=model, cluster=cluster, engine=engine, seq_len=seq_len, global_batch_size=384)
    estimate = TimeEstimate(memory=MemoryEstimate(probes=Probes(question=question)))
    rows = valid_candidates(Space(question=question, bounds=SearchBounds(offload=("none",)))).rows
    tree = Cuts(estimate, rows)
    modes = np.arange(3)
    cuts = [cut for cut in range(len(tree)) if not tree.is_timed[cut]]
    bounds = [tree.totals(np.full(3, cut), modes) for cut in cuts]
    tree.time(np.asarray(cuts))
    own = [tree.totals(np.full(3, cut), modes) for cut in cuts]
    assert len(cuts) > 10
    assert (BOUND_FRACTION * np.asarray(bounds) <= np.asarray(own)).all()
