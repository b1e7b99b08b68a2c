"""The bound is below the prediction, close to it, and falls with everything that divides memory."""

import numpy as np
import pytest

from shardwise.predict.memory import predict_memory
from shardwise.search.bounds import SearchBounds
from shardwise.search.memory_floor import MemoryFloor
from shardwise.search.probes import Probes
from shardwise.search.space import Space
from shardwise.search.validity import valid_candidates

QUESTIONS = [
    {"model": "llama-3.1-8b", "cluster": "16xh100-sxm", "engine": "native"},
    {"model": "llama-3.1-8b", "cluster": "16xh100-sxm", "engine": "megatron"},
    {"model": "mixtral-8x7b", "cluster": "16xh100-sxm", "engine": "megatron"},
    {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "engine": "deepspeed"},
    {"model": "qwen3-30b-a3b", "cluster": "8xh100-sxm", "engine": "torchtitan"},
    {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "engine": "fsdp1", "adapter": "qlora"},
    {"model": "gemma-2-9b", "cluster": "8xh100-sxm", "engine": "native", "optimizer": "adamw-8bit"},
]


def bounded(question, **bounds):
    valid = valid_candidates(Space(question=question, bounds=SearchBounds(**bounds)))
    floor = MemoryFloor(probes=Probes(question=question))
    return valid, floor.device_bytes(valid.rows, num_microbatches=valid.num_microbatches)


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: f"{asked['model']}-{asked['engine']}")
def test_the_bound_never_exceeds_what_the_prediction_says_is_needed(make_question, asked):
    question = make_question(**asked)
    valid, floor_bytes = bounded(question)
    sample = np.random.default_rng(7).choice(len(valid.rows), size=min(150, len(valid.rows)), replace=False)
    ratios = []
    for row in sample:
        plan = valid.rows.plan(int(row), question=question)
        ratios.append(floor_bytes[row] / predict_memory(plan).needed_bytes)
        assert ratios[-1] <= 1.001, plan.layout
    assert np.median(ratios) >= 0.85


def test_offloaded_states_leave_the_device(make_question):
    question = make_question()
    space = Space(question=question, bounds=SearchBounds(recompute=("full",)), offload=1)
    kept, kept_bytes = bounded(question, recompute=("full",))
    moved = valid_candidates(space)
    moved_bytes = MemoryFloor(probes=Probes(question=question)).device_bytes(
        moved.rows, num_microbatches=moved.num_microbatches
    )
    assert moved_bytes.min() < kept_bytes.min()
    assert len(kept.rows) > 0


def test_no_rows_have_no_bound(make_question):
    question = make_question()
    valid, _ = bounded(question)
    nothing = valid.rows.take(np.zeros(len(valid.rows), dtype=np.bool_))
    floor = MemoryFloor(probes=Probes(question=question))
    assert len(floor.device_bytes(nothing, num_microbatches=np.zeros(0, dtype=np.int64))) == 0
