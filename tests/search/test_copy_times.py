"""Copies around blocks take as long as the inventory's, whatever divides the weights they move."""

import numpy as np
import pytest

from shardwise.search import IntRange
from shardwise.search.copy_times import CopyTimes
from shardwise.search.machine import Machine
from shardwise.search.probes import FIRST, LAST, LONGEST, Probes
from shardwise.step.operation_context import operation_context
from shardwise.step.placement import pipeline_stages
from shardwise.step.stage_context import StageContext
from shardwise.step.step_operations import sharding_operations

ONE = IntRange(low=1, high=1)
QUESTIONS = [
    {"model": "llama-3.1-8b", "cluster": "16xh100-sxm", "engine": "native"},
    {"model": "qwen3-30b-a3b", "cluster": "16xh100-sxm", "engine": "native"},
    {"model": "llama-3.2-1b", "cluster": "8xh100-sxm", "engine": "torchtitan"},
    {"model": "deepseek-v3", "cluster": "64xdgx-h100", "engine": "deepspeed"},
    {"model": "mixtral-8x7b", "cluster": "16xh100-sxm", "engine": "megatron"},
]


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: f"{asked['model']}-{asked['engine']}")
def test_copies_of_every_watched_stage_are_the_inventorys(make_question, decorated, asked):
    question = make_question(**asked)
    rows = decorated(question, recompute=("none",), micro_batch_size=ONE, offload=("none",)).rows
    rows = rows.take(np.random.default_rng(3).choice(len(rows), size=min(24, len(rows)), replace=False))
    probes = Probes(question=question)
    copies = CopyTimes(probes=probes, machine=Machine(question=question))
    for which in (FIRST, LONGEST, LAST):
        watched = probes.watched(rows, which)
        found = np.stack(copies.passes_s(rows, watched), axis=1)
        expected = [
            _inventorys(rows.plan(row, question=question), stage) for row, stage in enumerate(watched.stage.tolist())
        ]
        assert found == pytest.approx(np.asarray(expected), rel=0.03, abs=1e-5)


def _inventorys(plan, stage):
    """Seconds of both passes of one micro-batch."""
    context = StageContext(plan=plan, stage=pipeline_stages(model=plan.model, layout=plan.layout)[stage])
    operations = tuple(sharding_operations(context, operation_context(context)))
    times = Machine(question=plan).phase_times(operations, part="sharding copies")
    return times.forward_s, times.backward_s
