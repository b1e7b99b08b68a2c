"""Depth and micro-batches that a trace extends are as if they had been run."""

import json
from dataclasses import replace

import pytest

from shardwise.train.job import Job
from shardwise.train.tracing.summary import StepSummary, peak
from shardwise.train.tracing.trace_job import trace_stage
from train.models import MIXTRAL, make_job
from train.tracing.held import held

pytestmark = pytest.mark.runs

DEEP = 6


def deep(job: Job, num_layers: int = DEEP) -> Job:
    return replace(job, model_config_json=json.dumps({**job.model_config, "num_hidden_layers": num_layers}))


def whole(monkeypatch, job: Job, stage: int = 0) -> StepSummary:
    """Every block and every micro-batch run."""
    monkeypatch.setattr("shardwise.train.tracing.trace_job._has_equal_blocks", lambda *_: False)
    monkeypatch.setattr("shardwise.train.tracing.trace_job.PLAIN_MICRO_BATCHES", 99)
    return trace_stage(job, stage).summary


EXTENDED = {
    "fsdp": {"layout": {"dp_shard": 2}},
    "fsdp, recomputed": {"layout": {"dp_shard": 2}, "recompute": "full"},
    "zero 1": {"layout": {"dp_shard": 2, "zero_stage": 1}},
    "tp, sequence parallel, fsdp": {
        "layout": {"dp_shard": 2, "tp": 2, "sequence_parallel": True},
    },
    "experts": {"layout": {"dp_shard": 2, "ep": 2}, "model": MIXTRAL, "precision": "bf16-mixed"},
}


@pytest.mark.parametrize("name", EXTENDED)
def test_extending_few_blocks_and_micro_batches_is_tracing_all_of_them(monkeypatch, name):
    job = deep(make_job(micro_batch_size=1, **EXTENDED[name]))
    short = trace_stage(job, 0)
    assert short.num_traced_blocks == 5
    assert short.num_traced_microbatches == 3 < job.num_microbatches
    everything = whole(monkeypatch, job)
    assert short.summary.calls == everything.calls
    assert short.summary.flop == pytest.approx(everything.flop)
    for phase in ("forward", "loss", "backward", "optimizer"):
        assert held(short.summary, phase) == held(everything, phase), phase


def test_extending_the_blocks_of_pipeline_stages_is_tracing_all_of_them(monkeypatch):
    job = deep(make_job(layout={"pp": 2, "dp_shard": 2}, chunk_layers=(6, 6), micro_batch_size=2), 12)
    for stage in (0, 1):
        short = trace_stage(job, stage)
        assert short.num_traced_blocks == 5
        with monkeypatch.context() as patch:
            everything = whole(patch, job, stage)
        assert short.summary.calls == everything.calls
        assert peak(short.summary)[1] == peak(everything)[1]
