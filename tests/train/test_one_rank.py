"""One rank keeps halves, or casts and keeps what FSDP2 would cast, copy and send: the same numbers in fewer kernels."""

from unittest import mock

import pytest
import torch
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

import shardwise.train.build
import shardwise.train.data_parallel
import shardwise.train.halves
from shardwise.train.halved import halved, joined
from train.models import GEMMA, LLAMA, make_job
from train.world_member import run


def test_halves_hold_an_fp32_number():
    generator = torch.Generator().manual_seed(3)
    spread = torch.exp(20 * torch.randn(10**6, generator=generator))
    wholes = torch.cat([torch.randn(10**6, generator=generator) * spread, torch.tensor([0.0, -0.0, 3.4e38, -3.4e38])])
    half, rest = halved(wholes)
    assert torch.equal(half, wholes.bfloat16())
    assert (half.dtype, rest.dtype) == (torch.bfloat16, torch.int16)
    lost = (joined(half, rest).view(torch.int32) - wholes.view(torch.int32)).abs()
    assert lost.max() <= 1  # of a tie that was rounded down
    assert (lost > 0).sum() < 100


def run_whole(job):
    """The job in units of FSDP2 over one rank, whose weights are fp32 and cast."""
    with mock.patch.object(shardwise.train.build, "keeps_halves", return_value=False):
        return run(job)


def run_halved(job):
    """The job with a rest for every parameter, however small."""
    with mock.patch.object(shardwise.train.halves, "SMALL_ELEMENTS", 0):
        return run(job)


@pytest.mark.parametrize("precision", ["bf16-mixed", "fp8-mixed"])
@pytest.mark.parametrize("sequences", [8, 2], ids=["one micro-batch", "four micro-batches"])
@pytest.mark.parametrize("model", [LLAMA, GEMMA], ids=["our decoder", "built by transformers"])
def test_halves_train_as_fp32_weights_do(worlds, precision, sequences, model):
    job = make_job(num_steps=6, precision=precision, micro_batch_size=sequences, model=model)
    (whole,), (halved_run,), (copied,) = (worlds[1].run(way, job) for way in (run_whole, run_halved, run))
    # FSDP2 adds both gradients of a tied table up in bf16 before it adds up micro-batches; halves add all up in fp32.
    tolerance = 3e-4 if model is GEMMA and sequences < 8 else 1e-5
    for found in (halved_run, copied):
        assert found.losses == pytest.approx(whole.losses, rel=tolerance)
        assert found.norms == pytest.approx(whole.norms, rel=2 * tolerance)


def run_copying(job):
    """The job as FSDP2 runs it by itself: into a second buffer, by way of a quotient."""
    with mock.patch.object(shardwise.train.data_parallel, "is_alone", return_value=False):
        return run(job)


@pytest.mark.parametrize("sequences", [8, 2], ids=["one micro-batch", "four micro-batches"])
def test_gradients_of_one_rank_are_those_that_would_be_copied(worlds, sequences):
    job = make_job(num_steps=3, precision="bf16-mixed", micro_batch_size=sequences, optimizer="sgd-momentum")
    (kept,), (copied,) = worlds[1].run(run, job), worlds[1].run(run_copying, job)
    assert kept.losses == copied.losses
    assert kept.norms == copied.norms


def run_counting(job):
    """The job, and how many single casts and copies the last steps called for."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        ran = run(job)
    calls = {event.key: event.count for event in profiler.key_averages()}
    return ran, calls.get("aten::_to_copy", 0), calls.get("fsdp::chunk_cat", 0)


def copy_gradients_in(gradients, buffer, num_ranks):
    torch.ops.fsdp.chunk_cat(gradients, dim=0, num_chunks=num_ranks, out=buffer.view(num_ranks, -1))


def run_one_by_one(job):
    """The job as FSDP2 runs it by itself: every parameter cast and then copied."""
    with (
        mock.patch.object(shardwise.train.data_parallel, "cast_at_once"),
        mock.patch.object(_fsdp_collectives, "foreach_reduce_scatter_copy_in", copy_gradients_in),
    ):
        return run_counting(job)


@pytest.mark.parametrize(
    ("model", "parameters"), [(LLAMA, 4 * 9 + 3), (GEMMA, 2 * 9 + 2)], ids=["our decoder", "built by transformers"]
)
def test_units_of_one_rank_are_cast_at_once(worlds, model, parameters):
    fields = {"precision": "bf16-mixed", "micro_batch_size": 8, "optimizer": "sgd-momentum"}
    job = make_job(num_steps=3, model=model, **fields)
    ((at_once, casts, joins),) = worlds[1].run(run_counting, job)
    ((one_by_one, all_casts, all_joins),) = worlds[1].run(run_one_by_one, job)
    assert at_once.losses == one_by_one.losses
    assert at_once.norms == one_by_one.norms
    assert joins == 0 < all_joins
    assert all_casts - casts == 2 * parameters  # the first step makes room as FSDP2 does
