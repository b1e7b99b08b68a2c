"""The estimate orders candidates almost as the prediction does."""

import numpy as np
import pytest

from shardwise.predict.time import predict_time
from shardwise.search import IntRange
from shardwise.search.memory_estimate import MemoryEstimate
from shardwise.search.probes import Probes
from shardwise.search.time_estimate import TimeEstimate

QUESTIONS = [
    {"model": "llama-3.1-8b", "cluster": "16xh100-sxm", "engine": "native"},
    {"model": "llama-3.1-8b", "cluster": "32xh100-sxm", "engine": "megatron", "global_batch_size": 256},
    {"model": "mixtral-8x7b", "cluster": "16xa100-sxm-80", "engine": "megatron"},
    {"model": "qwen3-8b", "cluster": "8xh100-sxm", "engine": "torchtitan", "seq_len": 1024},
    {"model": "llama-3.1-8b", "cluster": "16xh100-sxm", "engine": "deepspeed"},
]


def ranks(values):
    return np.argsort(np.argsort(values))


def estimated(question, pool):
    estimate = TimeEstimate(memory=MemoryEstimate(probes=Probes(question=question)))
    return estimate.step_s(pool.rows, num_microbatches=pool.num_microbatches)


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: f"{asked['model']}-{asked['engine']}")
def test_the_estimate_ranks_like_the_prediction(make_question, decorated, asked):
    question = make_question(**asked)
    pool = decorated(question, activation_offload=False)
    sample = np.random.default_rng(11).choice(len(pool), size=min(200, len(pool)), replace=False)
    step_s = estimated(question, pool.take(sample))
    predicted = np.asarray([predict_time(pool.rows.plan(int(row), question=question))[0].step_s for row in sample])
    assert np.corrcoef(ranks(step_s), ranks(predicted))[0, 1] > 0.95
    ratio = step_s / predicted
    assert 0.93 < np.median(ratio) < 1.07
    assert np.percentile(np.abs(ratio - 1), 90) < 0.25


@pytest.mark.parametrize("cluster", ["8xa100-sxm-80", "8xh100-sxm"])
def test_estimate_and_prediction_wait_as_long_for_activations_on_the_host(make_question, decorated, cluster):
    """Half of the step and more, over a shared link or out of shared memory."""
    question = make_question(cluster=cluster, activation_offload=True)
    one = IntRange(low=1, high=1)
    pool = decorated(question, tp=one, cp=one, pp=one, recompute=("none",)).take(np.arange(12))
    step_s = estimated(question, pool)
    predicted = [predict_time(pool.rows.plan(row, question=question))[0] for row in range(12)]
    waits = [entry.duration_s for time in predicted for entry in time.components if entry.component == "offload"]
    assert min(waited / time.step_s for waited, time in zip(waits, predicted, strict=True)) > 0.4
    assert step_s == pytest.approx(np.asarray([time.step_s for time in predicted]), rel=0.08)


def test_no_rows_take_no_time(make_question, decorated):
    question = make_question()
    nothing = decorated(question).take(np.zeros(0, dtype=np.int64))
    assert len(estimated(question, nothing)) == 0
