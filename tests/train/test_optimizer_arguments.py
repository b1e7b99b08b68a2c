"""Arguments of the optimizer and its schedule: as torch's own, under every layout, and through a checkpoint."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, SequentialLR

from shardwise.train.job import CheckpointSpec, OptimizerSpec, job_from_json, job_to_json
from shardwise.train.optimizer_kinds import AdamW8bit, Muon
from shardwise.train.optimizers import learning_rate, make_optimizer, set_learning_rates
from shardwise.train.parameters import Trained
from train.curves import assert_same
from train.models import LLAMA, make_job
from train.representatives import representatives
from train.world_member import run

EVERYTHING = OptimizerSpec(
    learning_rate=2e-3,
    weight_decay_fraction=0.3,
    beta_1_fraction=0.8,
    beta_2_fraction=0.97,
    epsilon=1e-4,
    num_warmup_steps=1,
    decay="wsd",
    num_decay_steps=3,
    min_learning_rate_ratio=0.25,
    undecayed=("*embed_tokens*", "*.layers.1.*"),
    group_rates=(("lm_head.*", 7e-3), ("*.self_attn.?_proj.weight", 5e-4)),
)
NAMES = ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight")
OPTIMIZERS_OF_TORCH = {
    "adamw": (torch.optim.AdamW, {"betas": (0.8, 0.97), "eps": 1e-4}),
    "sgd": (torch.optim.SGD, {}),
    "sgd-momentum": (torch.optim.SGD, {"momentum": 0.8}),
    "adafactor": (torch.optim.Adafactor, {}),
}


def toy() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((5, 3), (7, 3), (3,), (5, 3))]


@pytest.mark.parametrize("name", OPTIMIZERS_OF_TORCH)
def test_a_step_is_that_of_torch_with_groups_written_by_hand(name):
    """Decay spares the table by pattern and the norm by kind; the head learns at a rate of its own."""
    ours, theirs = toy(), toy()
    trained = tuple(
        Trained(name=name, parameter=p, local=p, stepped=p, num_copies=1, decays=p.dim() > 1)
        for name, p in zip(NAMES, ours, strict=True)
    )
    spec = replace(EVERYTHING, num_warmup_steps=0, decay="constant")
    optimizer = make_optimizer(trained, replace(make_job(optimizer=name), optimizer=spec))
    kind, arguments = OPTIMIZERS_OF_TORCH[name]
    table, matrix, norm, head = theirs
    groups = [
        {"params": [table, norm], "weight_decay": 0.0, "lr": 2e-3},
        {"params": [matrix], "weight_decay": 0.3, "lr": 2e-3},
        {"params": [head], "weight_decay": 0.3, "lr": 7e-3},
    ]
    expected = kind(groups, **arguments)
    generator = torch.Generator().manual_seed(4)
    for step in range(3):
        for mine, other in zip(ours, theirs, strict=True):
            mine.grad = other.grad = torch.randn(mine.shape, generator=generator)
        assert set_learning_rates(optimizer, spec, step=step, num_steps=3) == 2e-3
        optimizer.step()
        expected.step()
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.allclose(mine, other, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", [AdamW8bit, partial(Muon, whole=None, part=None)], ids=["adamw-8bit", "muon"])
def test_optimizers_of_our_own_divide_by_the_epsilon_that_is_asked_for(kind):
    """A first step from no moments is lr g / (|g| + eps): with eps = |g| half of what it is with none."""
    weight = nn.Parameter(torch.zeros(4))
    optimizer = kind([{"params": [weight], "weight_decay": 0.0}], lr=0.1, betas=(0.9, 0.95), eps=0.5)
    weight.grad = torch.full((4,), 0.5)
    optimizer.step()
    assert weight.tolist() == pytest.approx([-0.05] * 4, rel=1e-5)


def torch_rates(decay: str) -> list[float]:
    """Learning rates of torch's own schedulers: warm-up of 3 of 12 steps, peak 0.02, floor 0.005."""
    optimizer = torch.optim.SGD(toy(), lr=0.02)
    warm_up = LinearLR(optimizer, start_factor=1 / 3, total_iters=2)
    parts = {
        "constant": [ConstantLR(optimizer, factor=1.0)],
        "linear": [LinearLR(optimizer, start_factor=1.0, end_factor=0.25, total_iters=9)],
        "cosine": [CosineAnnealingLR(optimizer, T_max=9, eta_min=0.005)],
        "wsd": [
            ConstantLR(optimizer, factor=1.0),
            LinearLR(optimizer, start_factor=1.0, end_factor=0.25, total_iters=4),
        ],
    }[decay]
    schedule = SequentialLR(optimizer, [warm_up, *parts], milestones=[3, 8][: len(parts)])
    rates = []
    for _ in range(12):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize("decay", ["constant", "linear", "cosine", "wsd"])
def test_a_schedule_is_that_of_torch(decay):
    spec = OptimizerSpec(
        learning_rate=0.02, num_warmup_steps=3, decay=decay, num_decay_steps=4, min_learning_rate_ratio=0.25
    )
    ours = [learning_rate(spec, step=step, num_steps=12) for step in range(12)]
    assert ours == pytest.approx(torch_rates(decay), rel=1e-12)


def test_wsd_falls_in_the_last_tenth_unless_it_is_told_otherwise():
    spec = OptimizerSpec(learning_rate=1.0, decay="wsd", min_learning_rate_ratio=0.0)
    assert [learning_rate(spec, step=step, num_steps=40) for step in (0, 35, 36, 37, 39)] == [1, 1, 1, 0.75, 0.25]


def job_of(layout=None, chunk_layers=(), **recipe):
    return replace(make_job(layout=layout, chunk_layers=chunk_layers, **recipe), optimizer=EVERYTHING)


LAYOUTS = {
    "fsdp": (2, {"dp_shard": 2}, ()),
    "tp": (2, {"tp": 2, "sequence_parallel": True}, ()),
    "pp": (2, {"pp": 2}, (2, 2)),
    "fsdp x tp": (4, {"dp_shard": 2, "tp": 2, "sequence_parallel": True}, ()),
    "fsdp x pp": (4, {"dp_shard": 2, "pp": 2}, (2, 2)),
}


@pytest.fixture(scope="module")
def grouped_alone(worlds):
    return worlds[1].run(run, job_of())[0]


@pytest.mark.parametrize("name", representatives(LAYOUTS, ("fsdp", "tp", "pp")))
def test_groups_and_schedule_are_the_same_under_a_layout(worlds, grouped_alone, name):
    size, layout, chunk_layers = LAYOUTS[name]
    assert_same(worlds[size].run(run, job_of(layout, chunk_layers)), grouped_alone, relative=1e-5)


OTHERS = {
    "weight_decay_fraction": 0.1,
    "beta_1_fraction": 0.9,
    "beta_2_fraction": 0.95,
    "epsilon": 1e-8,
    "decay": "cosine",
    "num_decay_steps": 1,
    "min_learning_rate_ratio": 0.1,
    "undecayed": (),
    "group_rates": (),
}


def test_every_argument_changes_what_is_learned(worlds):
    """Otherwise the layouts would agree on a run that reads none of them."""
    specs = [EVERYTHING, *(replace(EVERYTHING, **{name: value}) for name, value in OTHERS.items())]
    job = job_of(model={**LLAMA, "num_hidden_layers": 2})
    assert len({tuple(worlds[1].run(run, replace(job, optimizer=spec))[0].losses) for spec in specs}) == 10


def test_a_run_with_groups_goes_on_bit_for_bit(worlds, tmp_path):
    job = job_of({"dp_shard": 2})
    spec = CheckpointSpec(folder=str(tmp_path), every_steps=2, num_kept=9)
    whole = worlds[2].run(run, replace(job, checkpoint=spec))[0].losses
    spec = CheckpointSpec(resume_from=str(tmp_path / "step-00000002"))
    assert worlds[2].run(run, replace(job, checkpoint=spec))[0].losses == whole[2:]


def test_a_job_with_patterns_comes_back_from_json():
    job = job_of()
    assert job_from_json(json.loads(json.dumps(job_to_json(job)))) == job
