"""One rank keeps halves, or casts and keeps what FSDP2 would cast, copy and send: the same numbers in fewer kernels."""

from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

import shardwise.train.build
import shardwise.train.data_parallel
import shardwise.train.halves
from shardwise.train.feed import open_feed
from shardwise.train.halved import halved, joined
from shardwise.train.job import CheckpointSpec
from shardwise.train.loop import make_trainer
from shardwise.train.measuring import held_bytes, measurement_object
from shardwise.train.mesh import make_mesh
from shardwise.train.parameters import send_gradients
from shardwise.train.worker import run_job
from train.models import GEMMA, LLAMA, make_job
from train.world_member import CPU, run


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


@pytest.mark.parametrize("sequences", [8, 2], ids=["one micro-batch", "four micro-batches"])
@pytest.mark.parametrize("saved_by", [1, 2])
def test_halves_are_saved_and_resumed_alone_and_by_two(worlds, tmp_path, saved_by, sequences):
    """A checkpoint of halves goes on bit for bit, and over two ranks, whose own checkpoint goes on in halves."""
    fields = {"num_steps": 4, "precision": "bf16-mixed"}
    jobs = {
        1: make_job(micro_batch_size=sequences, **fields),
        2: make_job(micro_batch_size=min(4, sequences), layout={"dp_shard": 2}, **fields),
    }
    spec = CheckpointSpec(folder=str(tmp_path), every_steps=2, num_kept=9)
    whole = worlds[saved_by].run(run_halved, replace(jobs[saved_by], checkpoint=spec))[0].losses
    resumed = CheckpointSpec(resume_from=str(tmp_path / "step-00000002"))
    for ranks, job in jobs.items():
        found = worlds[ranks].run(run_halved, replace(job, checkpoint=resumed))[0].losses
        if ranks == saved_by:
            assert found == whole[2:]
        assert found == pytest.approx(whole[2:], rel=1e-5)


def run_without_a_gradient(job):
    """Weights and states before and after a step in which one small weight had no gradient."""
    mesh = make_mesh(job.layout, device_type="cpu")
    feed = open_feed(job, data_parallel_rank=0, vocab_size=256, device=CPU)
    trainer = make_trainer(job, mesh, device=CPU, source=feed)
    trainer.step()
    norm = next(entry for entry in trainer.trained if entry.name.endswith("input_layernorm.weight"))
    before = norm.stepped.detach().clone()
    norm.local.grad = None
    send_gradients(trainer.trained)
    trainer.optimizer.step()
    feed.close()
    return torch.equal(before, norm.stepped), trainer.built.halves.copies[norm.parameter] is norm.stepped


def test_a_small_weight_without_a_gradient_stays(worlds):
    assert worlds[1].run(run_without_a_gradient, make_job(precision="bf16-mixed", micro_batch_size=8)) == [(True, True)]


def run_measured(job):
    trainer, records = run_job(job, device=CPU)
    return measurement_object(trainer, records)["memory"], held_bytes(trainer)


def test_halves_are_counted_as_parameters_and_none_of_them_on_the_host(worlds):
    job = make_job(num_steps=2, precision="bf16-mixed", micro_batch_size=8)
    ((memory, held),) = worlds[1].run(run_measured, job)
    assert memory["host_bytes"] == 0
    # 2 + 4 bytes of small tensors beside 8 of their moments and 4 of each count of steps.
    assert held["parameters"] == pytest.approx(0.75 * held["optimizer"], rel=1e-3)


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
