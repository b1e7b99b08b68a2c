"""Optimizers of our own: against their definition, against one process, and through a checkpoint."""

import inspect
from dataclasses import replace
from functools import cache

import pytest
import torch

from shardwise.errors import RecipeError
from shardwise.optimizers import OPTIMIZERS
from shardwise.train import block_codes, optimizer_kinds
from shardwise.train.adamw import OnePassAdamW
from shardwise.train.block_codes import SIGNED, UNSIGNED, decode, encode
from shardwise.train.job import CheckpointSpec
from shardwise.train.optimizer_kinds import AdamW8bit, Lion, orthogonal
from shardwise.train.optimizers import optimizer_class
from train.adapter_member import hold
from train.models import make_job
from train.representatives import representatives
from train.world_member import run

FSDP = {"dp_shard": 2}


@pytest.mark.parametrize("kind", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_the_class_that_a_record_names_takes_the_options_that_it_names(kind):
    taken = inspect.signature(optimizer_class(kind)).parameters
    assert {"lr", *kind.trainer_options} <= set(taken)


def test_an_optimizer_that_the_trainer_does_not_build_is_refused():
    with pytest.raises(RecipeError, match="no optimizer lion") as caught:
        optimizer_class(replace(OPTIMIZERS["lion"], torch_class=None))
    assert caught.value.code == "train-optimizer"


@pytest.fixture(scope="module")
def losses(curve):
    """Of four steps of a number of processes."""
    return lambda size, **named: curve(size, num_steps=4, **named).losses


@pytest.fixture(scope="module")
def saved(worlds, tmp_path_factory):
    """Where a run under FSDP saved its second step, and its losses of four: by recipe."""

    @cache
    def get(**recipe):
        folder = tmp_path_factory.mktemp("saved")
        spec = CheckpointSpec(folder=str(folder), every_steps=2, num_kept=9)
        job = replace(make_job(layout=FSDP, num_steps=4, **recipe), checkpoint=spec)
        return CheckpointSpec(resume_from=str(folder / "step-00000002")), worlds[2].run(run, job)[0].losses

    return get


@pytest.mark.parametrize(
    ("optimizer", "layout"),
    [("lion", FSDP), ("muon", FSDP), ("muon", {"tp": 2}), pytest.param("lion", {"tp": 2}, marks=pytest.mark.runs)],
    ids=str,
)
def test_an_optimizer_learns_what_it_learns_in_one_process(losses, optimizer, layout):
    alone = losses(1, optimizer=optimizer)
    assert losses(2, layout=layout, optimizer=optimizer) == pytest.approx(alone, rel=5e-5)
    assert alone[-1] < alone[0]


@pytest.mark.runs
def test_muon_gathers_matrices_that_two_axes_divide(losses):
    layout = {"dp_shard": 2, "tp": 2, "sequence_parallel": True}
    alone = losses(1, optimizer="muon")
    assert losses(4, layout=layout, optimizer="muon") == pytest.approx(alone, rel=5e-5)


def test_eight_bit_moments_follow_adamw(losses, saved):
    exact = losses(1)
    assert saved(optimizer="adamw-8bit")[1] == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eight_bit_moments_are_the_same_in_pieces(monkeypatch, dtype):
    """Pieces of four blocks, which end inside a parameter, at its end and behind it."""

    def trained(piece):
        monkeypatch.setattr(optimizer_kinds, "PIECE", piece)
        torch.manual_seed(0)
        weights = [torch.nn.Parameter(torch.randn(*shape).to(dtype)) for shape in ((37, 61), (4, 256), (3,))]
        optimizer = AdamW8bit([{"params": weights, "weight_decay": 0.1}], lr=1e-2, betas=(0.9, 0.95))
        for _ in range(3):
            for weight in weights:
                weight.grad = torch.randn(weight.shape).to(dtype)
            optimizer.step()
        return [*weights, *(value for weight in weights for value in optimizer.state[weight].values())]

    assert all(torch.equal(whole, pieces) for whole, pieces in zip(trained(1 << 20), trained(1024), strict=True))


def test_eight_bit_moments_take_a_quarter_of_the_bytes(worlds):
    job = make_job(layout=FSDP, num_steps=2, optimizer="adamw-8bit")
    held = worlds[2].run(hold, job)[0]
    params, num_tensors = 180_800 // 2, len(held.trained_names)
    assert 2 * params < held.optimizer_bytes < 2 * params * (1 + 4 / 256) + 12 * num_tensors


@pytest.mark.parametrize(
    "optimizer", representatives(("adamw-8bit", "lion", "muon", "adafactor"), ("adamw-8bit", "muon"))
)
def test_a_run_goes_on_bit_for_bit(worlds, saved, optimizer):
    spec, whole = saved(optimizer=optimizer)
    job = make_job(layout=FSDP, num_steps=4, optimizer=optimizer)
    assert worlds[2].run(run, replace(job, checkpoint=spec))[0].losses == whole[2:]


def test_eight_bit_moments_go_on_under_another_layout(worlds, saved):
    spec, whole = saved(optimizer="adamw-8bit")
    other = make_job(layout={"tp": 2}, num_steps=4, optimizer="adamw-8bit")
    assert worlds[2].run(run, replace(other, checkpoint=spec))[0].losses == pytest.approx(whole[2:], rel=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=pytest.mark.runs)])
def test_optimizer_states_on_the_host_change_no_number(losses, saved, optimizer):
    """On a CPU host and device are one memory, but the copies between them are made."""
    kept = losses(2, layout=FSDP, optimizer=optimizer)
    assert saved(optimizer=optimizer, offload="optimizer")[1] == kept


def test_a_run_with_states_on_the_host_goes_on_bit_for_bit(worlds, saved):
    spec, whole = saved(optimizer="adamw", offload="optimizer")
    job = make_job(layout=FSDP, num_steps=4, offload="optimizer")
    assert worlds[2].run(run, replace(job, checkpoint=spec))[0].losses == whole[2:]


def test_lion_steps_by_the_sign_of_what_it_sees_ahead():
    weight = torch.nn.Parameter(torch.tensor([1.0, 1.0]))
    optimizer = Lion([{"params": [weight], "weight_decay": 0.5}], lr=0.1, betas=(0.9, 0.99))
    for gradient in ([1.0, -2.0], [-20.0, -1.0]):
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    assert weight.tolist() == pytest.approx([(0.95 - 0.1) * 0.95 + 0.1, (0.95 + 0.1) * 0.95 + 0.1])
    assert optimizer.state[weight]["exp_avg"].tolist() == pytest.approx([0.01 * 0.99 - 0.2, -0.02 * 0.99 - 0.01])


def test_eight_bit_adamw_takes_adamw_s_first_step():
    """Moments of one step are powers of one gradient, which the largest number of a block keeps exactly."""
    mine, theirs = (torch.nn.Parameter(torch.full((300,), 2.0)) for _ in range(2))
    options = {"lr": 0.1, "betas": (0.9, 0.95)}
    optimizers = (
        AdamW8bit([{"params": [mine], "weight_decay": 0.1}], **options),
        torch.optim.AdamW([theirs], weight_decay=0.1, **options),
    )
    for weight, optimizer in zip((mine, theirs), optimizers, strict=True):
        for _ in range(3):
            weight.grad = torch.full((300,), -0.25)
            optimizer.step()
    assert torch.allclose(mine, theirs, rtol=1e-6)


@pytest.mark.parametrize("values", [SIGNED, UNSIGNED], ids=["signed", "unsigned"])
def test_numbers_decoded_and_encoded_again_are_the_same_bytes(values):
    torch.manual_seed(0)
    numbers = torch.randn(7, 129) ** 3
    numbers = numbers if values is SIGNED else numbers.abs()
    first = encode(numbers, values=values)
    again = encode(decode(first, values=values), values=values)
    assert torch.equal(first.codes, again.codes)
    assert torch.equal(first.scales, again.scales)
    assert (decode(first, values=values) - numbers).abs().max() < 0.02 * numbers.abs().max()


def test_a_divisor_above_zero_never_becomes_zero():
    numbers = torch.cat([torch.logspace(-12, 0, 200), torch.zeros(56)])
    decoded = decode(encode(numbers, values=UNSIGNED), values=UNSIGNED)
    assert (decoded[:200] > 0).all()
    assert decoded[200:].eq(0).all()


@pytest.mark.parametrize("shape", [(16, 16), (8, 32), (48, 8), (3, 16, 8)], ids=str)
def test_an_orthogonal_update_has_singular_values_near_one(shape):
    """Newton-Schulz with these coefficients ends between 0.68 and 1.13 (Jordan 2024)."""
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
    assert values.min() > 0.3
    assert values.max() < 1.2


def test_small_tensors_are_updated_together_as_each_by_itself():
    """What GPUs do with factors of adapters and norms; on CPUs torch's fused AdamW takes every tensor."""
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(size, generator=generator) for size in ((3, 5), (7,))]
    mine, theirs = ([torch.nn.Parameter(start.clone()) for start in starts] for _ in range(2))
    options = {"lr": 0.1, "betas": (0.9, 0.95)}
    together = OnePassAdamW([{"params": mine, "weight_decay": 0.1}], **options)
    one_by_one = torch.optim.AdamW([{"params": theirs, "weight_decay": 0.1}], **options)
    for _ in range(3):
        gradients = [torch.randn(start.shape, generator=generator) for start in starts]
        for weight, other, gradient in zip(mine, theirs, gradients, strict=True):
            weight.grad, other.grad = gradient.clone(), 0.25 * gradient
        together.begin(torch.tensor(0.25))
        together.step()
        one_by_one.step()
    for weight, other in zip(mine, theirs, strict=True):
        assert torch.allclose(weight, other, rtol=1e-6)


def test_the_values_of_bytes_are_sent_to_a_device_once():
    numbers = torch.linspace(-1, 1, 512)
    encode(numbers, values=SIGNED)
    held = block_codes._table.cache_info().misses
    decode(encode(numbers, values=SIGNED), values=SIGNED)
    assert block_codes._table.cache_info().misses == held
