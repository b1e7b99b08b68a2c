"""The estimate orders candidates almost as the prediction does."""

import numpy as np
import pytest

from shardwise.predict.time import predict_time
from shardwise.search.bounds import SearchBounds
from shardwise.search.probes import Probes
from shardwise.search.space import Space
from shardwise.search.time_estimate import TimeEstimate
from shardwise.search.validity import valid_candidates

QUESTIONS = [
    {"model": "llama-3.1-8b", "cluster": "16xh100-sxm", "engine": "native"},
    {"model": "llama-3.1-8b", "cluster": "32xh100-sxm", "engine": "megatron", "global_batch_size": 256},
    {"model": "mixtral-8x7b", "cluster": "16xa100-sxm-80", "engine": "megatron"},
    {"model": "qwen3-8b", "cluster": "8xh100-sxm", "engine": "torchtitan", "seq_len": 1024},
    {"model": "llama-3.1-8b", "cluster": "16xh100-sxm", "engine": "deepspeed"},
]


def ranks(values):
    return np.argsort(np.argsort(values))


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: f"{asked['model']}-{asked['engine']}")
def test_the_estimate_ranks_like_the_prediction(make_question, asked):
    question = make_question(**asked)
    valid = valid_candidates(Space(question=question, bounds=SearchBounds()))
    estimate = TimeEstimate(probes=Probes(question=question))
    step_s = estimate.step_s(valid.rows, num_microbatches=valid.num_microbatches)
    sample = np.random.default_rng(11).choice(len(valid.rows), size=min(200, len(valid.rows)), replace=False)
    predicted = np.asarray([predict_time(valid.rows.plan(int(row), question=question))[0].step_s for row in sample])
    assert np.corrcoef(ranks(step_s[sample]), ranks(predicted))[0, 1] > 0.95
    ratio = step_s[sample] / predicted
    assert 0.93 < np.median(ratio) < 1.07
    assert np.percentile(np.abs(ratio - 1), 90) < 0.25


def test_no_rows_take_no_time(make_question):
    question = make_question()
    valid = valid_candidates(Space(question=question, bounds=SearchBounds()))
    nothing = valid.rows.take(np.zeros(len(valid.rows), dtype=np.bool_))
    estimate = TimeEstimate(probes=Probes(question=question))
    assert len(estimate.step_s(nothing, num_microbatches=np.zeros(0, dtype=np.int64))) == 0
