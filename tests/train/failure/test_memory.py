from dataclasses import replace

import pytest

from shardwise.errors import ShardwiseError
from shardwise.explain.changes import NOTHING_FITS, first_remedy
from shardwise.plan_file import read_plan
from shardwise.predict import predict
from shardwise.train.failure.diagnose import diagnose
from shardwise.train.failure.memory import excesses, memory_sentences
from shardwise.train.failure.record import FailureRecord, write_record
from shardwise.units import GIB

MESSAGE = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate {asked:.2f} GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 1.50 GiB is free. Including non-PyTorch memory, this process has 77.60 GiB memory in use. Of the "
    "allocated memory 74.20 GiB is allocated by PyTorch, and 1.90 GiB is reserved by PyTorch but unallocated."
)


@pytest.fixture
def plan():
    return read_plan(
        {
            "model": "llama-3.1-8b",
            "cluster": {"gpu": "h100-sxm", "gpus_per_node": 4, "num_nodes": 1},
            "recipe": {"seq_len": 8192, "micro_batch_size": 1, "global_batch_size": 4, "recompute": "none"},
            "layout": {"dp_shard": 4},
        }
    )


def record(**changes):
    base = FailureRecord(
        rank=2,
        kind="out-of-memory",
        message=MESSAGE.format(asked=4.0),
        step=0,
        phase="training",
        time_s=0.0,
        memory_bytes={"parameters": 8 * GIB, "optimizer": 16 * GIB, "allocated": int(74.2 * GIB)},
    )
    return replace(base, **changes)


def test_the_component_that_was_larger_is_named_with_both_figures(plan):
    """Of 8B parameters over 4 ranks: 2 x 8.03e9 x 4 bytes / 4 = 15 GiB of moments; it held 16, and 50 of others."""
    predicted = predict(plan)
    first = excesses(record(), predicted)[0]
    assert first.component == "activations and logits"
    assert first.held_bytes == int(74.2 * GIB) - 24 * GIB
    said, _ = memory_sentences(record(), plan=plan)
    assert "activations and logits held 50.20 GiB, and 24.96 GiB were predicted" in said


def test_a_state_that_was_larger_is_named_as_well(plan):
    """Moments that were never sharded: 60 GiB where 15 were predicted."""
    memory = {"parameters": 7 * GIB, "optimizer": 60 * GIB, "allocated": 70 * GIB}
    said, _ = memory_sentences(record(memory_bytes=memory), plan=plan)
    assert "optimizer held 60.00 GiB, and 14.96 GiB were predicted" in said


def test_the_change_offered_would_have_fitted_what_the_run_needed(plan):
    """The plan took 80 GiB; what is offered must fit even if its own prediction is too small by the same factor."""
    predicted = predict(plan)
    change = first_remedy(plan, predicted, needed_bytes=int(90 * GIB))
    assert change.needed_bytes * 90 * GIB / predicted.memory.needed_bytes <= predicted.memory.capacity_bytes
    _, fix = memory_sentences(record(), plan=plan)
    assert fix.startswith("set ")
    assert "by the prediction" in fix


def test_when_nothing_is_enough_that_is_said(plan):
    _, fix = memory_sentences(record(memory_bytes={"allocated": 10_000 * GIB}), plan=plan)
    assert fix == NOTHING_FITS


def test_without_a_plan_the_request_is_said(plan):
    said, fix = memory_sentences(record(), plan=None)
    assert said == "4.00 GiB more were asked for"
    assert "recomputation" in fix


def test_the_whole_error_is_one_line_with_exit_code_3(plan, tmp_path):
    write_record(tmp_path, record())
    error = diagnose(tmp_path, plan=plan)
    assert isinstance(error, ShardwiseError)
    assert error.exit_code == 3
    assert error.message.startswith("rank 2 ran out of memory after step 0 (training): 4.00 GiB more were asked for; ")
    assert "\n" not in error.message
