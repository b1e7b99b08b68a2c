"""Arrays and inventory agree on random models, clusters, recipes and layouts: memory exactly, time nearly."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.catalog import read_cluster
from shardwise.families import read_model
from shardwise.layout import Layout
from shardwise.plan import Plan
from shardwise.predict import predict
from shardwise.recipe import Recipe
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.probes import Probes
from shardwise.search.time_estimate import TimeEstimate

ROWS = 24
TIME_MEDIAN, TIME_NINETIETH = 0.08, 0.25
LEAST_CORRELATION = 0.92

questions = st.builds(
    Plan,
    model=st.sampled_from(("llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "qwen3-30b-a3b", "gpt-neox-20b")).map(
        read_model
    ),
    cluster=st.sampled_from(("8xa100-sxm-80", "16xh100-sxm", "8xdgx-h100", "8xmi300x", "3xdgx-h100")).map(read_cluster),
    recipe=st.builds(
        Recipe,
        seq_len=st.sampled_from((1024, 2048)),
        global_batch_size=st.sampled_from((96, 384)),
        precision=st.sampled_from(("bf16-mixed", "fp32")),
        optimizer=st.sampled_from(("adamw", "sgd-momentum")),
    ),
    layout=st.just(Layout()),
    engine=st.sampled_from(("native", "megatron", "deepspeed", "torchtitan", "fsdp1", "accelerate")),
)


@settings(max_examples=8, derandomize=True)
@given(question=questions, seed=st.integers(0, 999))
def test_both_roads_agree(decorated, question, seed):
    if question.engine == "torchtitan" and question.recipe.optimizer != "adamw":
        return
    pool = decorated(question)
    if len(pool) < ROWS:
        return
    some = pool.take(np.random.default_rng(seed).choice(len(pool), size=ROWS, replace=False))
    estimate = TimeEstimate(memory=MemoryEstimate(probes=Probes(question=question)))
    step_s = estimate.step_s(some.rows, num_microbatches=some.num_microbatches)
    predictions = [predict(some.rows.plan(row, question=question)) for row in range(ROWS)]
    needed = np.asarray([prediction.memory.needed_bytes for prediction in predictions])
    predicted = np.asarray([prediction.time.step_s for prediction in predictions])
    assert np.array_equal(some.needed_bytes, needed)
    errors = np.abs(step_s / predicted - 1)
    assert np.median(errors) < TIME_MEDIAN
    assert np.quantile(errors, 0.9) < TIME_NINETIETH
    ranks = [np.argsort(np.argsort(values)) for values in (step_s, predicted)]
    assert np.corrcoef(*ranks)[0, 1] > LEAST_CORRELATION
