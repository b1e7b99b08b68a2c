"""Dropout draws what seed, rank and step say: that of adapters, and that of models that transformers builds."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from shardwise.train.draws import seed_of_step
from shardwise.train.feed import open_feed
from shardwise.train.job import CheckpointSpec
from shardwise.train.loop import make_trainer
from shardwise.train.mesh import make_mesh
from shardwise.train.worker import run_job
from train.models import make_job
from train.ranks import run_ranks
from train.representatives import representatives

CPU = torch.device("cpu")
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 2,
    "n_positions": 32,
    "vocab_size": 256,
    "tie_word_embeddings": True,
}
DROPPED = {"adapter": "lora", "lora_targets": "all-linear", "lora_dropout_fraction": 0.5}
DATA_PARALLEL = {
    "ddp": {"dp_replicate": 2, "zero_stage": 0},
    "zero 1": {"dp_shard": 2, "zero_stage": 1},
    "fsdp": {"dp_shard": 2},
}


def _curve(_rank, job, num_drawn):
    """Losses and norms of a run in a process that has drawn this many numbers before."""
    torch.rand(num_drawn)
    trainer, records = run_job(job, device=CPU)
    del trainer
    return [(r.loss, r.gradient_norm) for r in records]


def _masks(_rank, job, num_steps):
    """What every dropout of the model dropped, call by call, in every step."""
    mesh = make_mesh(job.layout, device_type="cpu")
    feed = open_feed(job, data_parallel_rank=mesh.data_parallel_rank, vocab_size=256, device=CPU)
    trainer = make_trainer(job, mesh, device=CPU, source=feed)
    found = []
    for module in (part for decoder in trainer.built.decoders for part in decoder.modules()):
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(
                lambda _module, given, left: found.append(_bits((left == 0) & (given[0] != 0)))
            )
    steps = []
    for _ in range(num_steps):
        trainer.step()
        steps.append(list(found))
        found.clear()
    feed.close()
    return steps


def _bits(mask):
    return bytes(mask.flatten().to(torch.uint8).tolist())


def saving(job, folder, **spec):
    return replace(job, checkpoint=CheckpointSpec(folder=str(folder), **spec))


@pytest.mark.parametrize("name", representatives(DATA_PARALLEL, ("fsdp",)))
def test_two_equal_runs_of_gpt2_are_equal_bit_for_bit_with_their_exports(tmp_path, name):
    job = make_job(model=GPT2, layout=DATA_PARALLEL[name], num_steps=3)
    curves, exports = [], []
    for number in (1, 2):
        export = tmp_path / f"export-{number}"
        saved = saving(job, tmp_path / f"states-{number}", export_folder=str(export))
        curves.append(run_ranks(2, _curve, saved, 7 * number))
        exports.append({path.name: path.read_bytes() for path in export.glob("*.safetensors")})
    assert curves[0] == curves[1]
    assert exports[0]
    assert exports[0] == exports[1]


def test_another_seed_drops_others():
    job = make_job(model=GPT2, num_steps=1)
    assert run_ranks(1, _masks, job, 1) != run_ranks(1, _masks, replace(job, seed=1), 1)


@pytest.mark.parametrize("name", representatives(DATA_PARALLEL, ("ddp", "fsdp")))
def test_replicas_micro_batches_steps_and_layers_drop_different_ones(name):
    """Two ranks, four micro-batches each, two steps, five dropouts of one shape in a micro-batch."""
    job = make_job(model=GPT2, layout=DATA_PARALLEL[name], micro_batch_size=1)
    masks = [mask for steps in run_ranks(2, _masks, job, 2) for step in steps for mask in step]
    assert len(masks) == 2 * 2 * 4 * 5
    assert len(set(masks)) == len(masks)


def test_every_place_and_step_has_a_seed_of_its_own_that_torch_takes():
    places = [
        {"seed": seed, "stage": stage, "copy": copy, "step": step}
        for seed in (0, 1, 2**63 - 1)
        for stage in range(4)
        for copy in range(8)
        for step in (0, 1, 10, 100, 10**12)
    ]
    seeds = {seed_of_step(**place) for place in places}
    assert len(seeds) == len(places)
    assert all(torch.Generator().manual_seed(seed).initial_seed() == seed for seed in seeds)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Where a run of five steps under FSDP saved its second, and what its ranks got."""
    folder = tmp_path_factory.mktemp("whole")
    job = make_job(model=GPT2, layout={"dp_shard": 2}, num_steps=5)
    return str(folder / "step-00000002"), run_ranks(2, _curve, saving(job, folder, every_steps=2, num_kept=9), 0)


def test_a_resumed_run_goes_on_bit_for_bit_at_dropout(whole, tmp_path):
    source, curves = whole
    job = make_job(model=GPT2, layout={"dp_shard": 2}, num_steps=5)
    resumed = saving(job, tmp_path, resume_from=source)
    assert run_ranks(2, _curve, resumed, 5) == [curve[2:] for curve in curves]


def test_a_resume_onto_another_layout_is_a_function_of_the_checkpoint_too(whole):
    alone = make_job(model=GPT2, num_steps=4)
    checkpoint = CheckpointSpec(resume_from=whole[0])
    curves = [run_ranks(1, _curve, replace(alone, checkpoint=checkpoint), number) for number in (1, 2)]
    assert curves[0] == curves[1]


@pytest.mark.parametrize(
    "is_sequence_parallel",
    [pytest.param(False, id="plain", marks=pytest.mark.runs), pytest.param(True, id="sequence parallel")],
)
def test_tensor_parallel_ranks_drop_what_one_rank_alone_drops(curve, is_sequence_parallel):
    """The same of what all hold, and their part of the same of what they hold in parts: else curves would part."""
    given = {"micro_batch_size": 4, "num_steps": 4, **DROPPED}
    alone = curve(1, **given)
    divided = curve(2, layout={"tp": 2, "sequence_parallel": is_sequence_parallel}, **given)
    assert divided.losses == pytest.approx(alone.losses, rel=1e-5)
    assert divided.norms == pytest.approx(alone.norms, rel=1e-5)


def _drawn_by_adapters(_rank, job):
    """The sizes and zeros of every mask that adapters drew in one step."""
    mesh = make_mesh(job.layout, device_type="cpu")
    feed = open_feed(job, data_parallel_rank=mesh.data_parallel_rank, vocab_size=256, device=CPU)
    trainer = make_trainer(job, mesh, device=CPU, source=feed)
    found, plain = [], nn.functional.dropout

    def dropout(given, fraction):
        left = plain(given, fraction)
        found.append(_bits(left == 0))
        return left

    nn.functional.dropout = dropout
    trainer.step()
    feed.close()
    return found


@pytest.mark.parametrize(
    ("layout", "chunk_layers"),
    [
        ({"pp": 2}, (2, 2)),
        ({"cp": 2}, ()),
        ({"dp_shard": 2}, ()),
        pytest.param({"pp": 2, "vpp": 2, "schedule": "interleaved"}, (1, 1, 1, 1), marks=pytest.mark.runs),
    ],
    ids=["stages", "context", "fsdp", "interleaved stages"],
)
def test_adapters_of_ranks_that_compute_other_things_drop_different_ones(layout, chunk_layers):
    job = make_job(layout=layout, chunk_layers=chunk_layers, micro_batch_size=1, **DROPPED)
    first, second = run_ranks(2, _drawn_by_adapters, job)
    assert first
    assert second
    assert not {*first} & {*second}
    for drawn in (first, second):
        assert len(set(drawn)) == len(drawn)
