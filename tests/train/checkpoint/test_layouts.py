"""The runtime's own states through a checkpoint: saved under one layout, continued under any other."""

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from shardwise.train.data import SampleOrder, open_samples
from shardwise.train.job import CheckpointSpec, DataSpec
from train.models import LLAMA, MIXTRAL, make_job
from train.representatives import representatives
from train.world_member import run

NUM_STEPS, SAVED_STEP = 4, 2
TO_LAYOUTS = {
    "fsdp": (2, {"dp_shard": 2}, ()),
    "fsdp, spread vocabulary": (2, {"dp_shard": 2, "spread_vocabulary": True}, ()),
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}, ()),
    "zero 1": (2, {"dp_shard": 2, "zero_stage": 1}, ()),
    "tp, sequence parallel": (2, {"tp": 2, "sequence_parallel": True}, ()),
    "pp": (2, {"pp": 2}, (1, 3)),
    "fsdp x tp": (4, {"dp_shard": 2, "tp": 2}, ()),
    "hsdp": (4, {"dp_replicate": 2, "dp_shard": 2}, ()),
    "pp x fsdp": (4, {"pp": 2, "dp_shard": 2}, (2, 2)),
    "one process": (1, {}, ()),
}
KEPT = ("fsdp", "ddp", "zero 1", "tp, sequence parallel", "pp", "one process")
TO_EXPERTS = {"ep": (2, {"dp_shard": 2, "ep": 2}, ()), "one process": (1, {}, ())}


def saved(worlds, folder, *, size, **named):
    """The losses of a run that saves after half of its steps."""
    job = make_job(num_steps=NUM_STEPS, **named)
    spec = CheckpointSpec(folder=str(folder), every_steps=SAVED_STEP, num_kept=9)
    return worlds[size].run(run, replace(job, checkpoint=spec))[0].losses


def continued(worlds, folder, *, size, **named):
    """The losses of the steps after the saved one."""
    spec = CheckpointSpec(resume_from=str(folder / f"step-{SAVED_STEP:08d}"))
    return worlds[size].run(run, replace(make_job(num_steps=NUM_STEPS, **named), checkpoint=spec))[0].losses


@pytest.fixture(scope="module")
def fsdp(worlds, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fsdp")
    return folder, saved(worlds, folder, size=2, layout={"dp_shard": 2})


@pytest.mark.parametrize("name", representatives(TO_LAYOUTS, KEPT))
def test_a_run_under_fsdp_goes_on_under_any_layout(worlds, fsdp, name):
    folder, losses = fsdp
    size, layout, chunk_layers = TO_LAYOUTS[name]
    found = continued(worlds, folder, size=size, layout=layout, chunk_layers=chunk_layers)
    if name == "fsdp":
        assert found == losses[SAVED_STEP:]
    assert found == pytest.approx(losses[SAVED_STEP:], rel=1e-5)


def test_a_run_with_a_spread_vocabulary_goes_on_bit_for_bit_and_under_another_layout(worlds, tmp_path):
    spread = {"dp_shard": 2, "spread_vocabulary": True}
    losses = saved(worlds, tmp_path, size=2, layout=spread)
    assert continued(worlds, tmp_path, size=2, layout=spread) == losses[SAVED_STEP:]
    assert continued(worlds, tmp_path, size=2, layout={"tp": 2}) == pytest.approx(losses[SAVED_STEP:], rel=1e-5)


def test_a_run_of_a_pipeline_goes_on_under_tensor_parallelism(worlds, tmp_path):
    losses = saved(worlds, tmp_path, size=4, layout={"pp": 2, "dp_shard": 2}, chunk_layers=(2, 2))
    assert continued(worlds, tmp_path, size=2, layout={"tp": 2}) == pytest.approx(losses[SAVED_STEP:], rel=1e-5)


@pytest.mark.parametrize("name", representatives(TO_EXPERTS, ("ep",)))
def test_experts_that_were_divided_go_on_divided_otherwise(worlds, tmp_path, name):
    losses = saved(worlds, tmp_path, size=4, layout={"dp_shard": 4, "ep": 2}, model=MIXTRAL)
    size, layout, _ = TO_EXPERTS[name]
    found = continued(worlds, tmp_path, size=size, layout=layout, model=MIXTRAL)
    assert found == pytest.approx(losses[SAVED_STEP:], rel=1e-5)


@pytest.mark.parametrize(("size", "layout"), [(1, {}), (2, {"dp_shard": 2}), (2, {"tp": 2}), (2, {"pp": 2})], ids=str)
@pytest.mark.parametrize("model", [LLAMA, MIXTRAL], ids=["llama", "mixtral"])
def test_pretrained_weights_give_the_loss_that_transformers_computes(worlds, tmp_path, size, layout, model):
    """The first loss of a run that begins with a real checkpoint, against the model it was saved from."""
    if model is MIXTRAL and "tp" in layout:
        layout = {"dp_shard": 2, "ep": 2}
    fields = {key: value for key, value in model.items() if key != "model_type"}
    torch.manual_seed(5)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(model["model_type"], **fields))
    theirs.save_pretrained(tmp_path)
    job = make_job(layout=layout, model=model, num_steps=1, chunk_layers=(2, 2) if "pp" in layout else ())
    job = replace(job, checkpoint=CheckpointSpec(initial_weights=str(tmp_path)))
    losses = worlds[size].run(run, job)[0].losses
    assert losses == pytest.approx([loss_of_theirs(theirs, job)], rel=1e-5)


def loss_of_theirs(model, job):
    samples = open_samples(DataSpec(), seq_len=job.recipe.seq_len, vocab_size=256)
    order = SampleOrder(num_samples=samples.num_samples, seed=0)
    made = [samples.sample(int(number)) for number in order.samples_at(range(job.global_batch_size))]
    inputs = torch.stack([torch.from_numpy(sample.inputs) for sample in made])
    labels = torch.stack([torch.from_numpy(sample.labels) for sample in made])
    with torch.no_grad():
        logits = model(input_ids=inputs, use_cache=False).logits
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()))
