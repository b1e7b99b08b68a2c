"""Packed documents that do not see each other: the numbers of separate sequences, under every layout."""

import json
from dataclasses import replace

import pytest
import torch

from shardwise.train.decoder.config import read_config
from shardwise.train.decoder.model import Decoder
from shardwise.train.document_mask import document_mask
from shardwise.train.huggingface import TransformersDecoder
from shardwise.train.initialise import initialise
from shardwise.train.job import DataSpec
from train.causality import probed_fields
from train.models import GEMMA, LLAMA, MIXTRAL, make_job
from train.representatives import representatives
from train.world_member import run

CPU = torch.device("cpu")
LENGTHS = (7, 13, 12)
BYTES = {**LLAMA, "vocab_size": 320}
"""Room for the tokenizer of bytes, whose documents end with token 256."""


def ours(model):
    with torch.device("meta"):
        decoder = Decoder(read_config(model), layers=range(model["num_hidden_layers"]))
    decoder.prepare_positions(torch.arange(sum(LENGTHS)))
    return decoder


def theirs(model):
    decoder = TransformersDecoder(model)
    decoder.fill_buffers(CPU)
    return decoder


@pytest.mark.parametrize(("build", "model"), [(ours, LLAMA), (ours, MIXTRAL), (theirs, LLAMA), (theirs, GEMMA)])
def test_packed_documents_have_the_losses_and_gradients_of_separate_sequences(build, model):
    decoder = build(model)
    initialise(decoder, prefix="", device=CPU, seed=3, std=0.2)
    torch.manual_seed(0)
    ids, labels = torch.randint(256, (2, 32)), torch.randint(256, (2, 32))
    places = torch.cat([torch.arange(length) for length in LENGTHS]).expand(2, -1)
    packed = decoder(ids, labels, places)
    packed.backward()
    gradients = {name: parameter.grad.clone() for name, parameter in decoder.named_parameters()}
    decoder.zero_grad()
    apart = torch.zeros(())
    for part, wanted in zip(ids.split(LENGTHS, dim=1), labels.split(LENGTHS, dim=1), strict=True):
        if build is ours:
            decoder.prepare_positions(torch.arange(part.size(1)))
        loss = decoder(part.contiguous(), wanted.contiguous())
        loss.backward()
        apart += loss.detach()
    assert packed.item() == pytest.approx(apart.item(), rel=1e-6)
    for name, parameter in decoder.named_parameters():
        assert (parameter.grad - gradients[name]).norm() < 1e-4 * parameter.grad.norm(), name


def test_without_places_documents_see_each_other():
    decoder = ours(LLAMA)
    initialise(decoder, prefix="", device=CPU, seed=3, std=0.2)
    torch.manual_seed(0)
    ids, labels = torch.randint(256, (1, 32)), torch.randint(256, (1, 32))
    places = torch.cat([torch.arange(length) for length in LENGTHS]).unsqueeze(0)
    assert decoder(ids, labels).item() != pytest.approx(decoder(ids, labels, places).item(), rel=1e-4)


def test_a_query_sees_earlier_tokens_of_its_document():
    mask = document_mask(torch.tensor([[0, 1, 2, 0, 1]]), torch.tensor([1, 4]))
    assert mask.squeeze().int().tolist() == [[1, 1, 0, 0, 0], [0, 0, 0, 1, 1]]


LAYOUTS = {
    "fsdp": (2, {"dp_shard": 2}, ()),
    "ddp": (2, {"dp_replicate": 2, "zero_stage": 0}, ()),
    "tp": (2, {"tp": 2, "sequence_parallel": True}, ()),
    "cp": (2, {"cp": 2}, ()),
    "pp": (2, {"pp": 2}, (2, 2)),
}


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """Short documents of many lengths."""
    path = tmp_path_factory.mktemp("data") / "documents.jsonl"
    texts = ["abcdefgh"[: 2 + number % 7] * (1 + number % 5) for number in range(200)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return DataSpec(source=str(path), crosses_documents=False)


@pytest.fixture(scope="module")
def masked_alone(worlds, spec):
    return worlds[1].run(run, replace(make_job(model=BYTES, num_steps=3), data=spec))[0]


@pytest.mark.parametrize("name", representatives(LAYOUTS, ("fsdp", "tp", "cp", "pp")))
def test_documents_are_kept_apart_under_every_layout(worlds, masked_alone, spec, name):
    size, layout, chunk_layers = LAYOUTS[name]
    job = replace(make_job(model=BYTES, layout=layout, chunk_layers=chunk_layers, num_steps=3), data=spec)
    for result in worlds[size].run(run, job):
        assert result.losses == pytest.approx(masked_alone.losses, rel=1e-5)
        assert result.norms == pytest.approx(masked_alone.norms, rel=1e-4)


@pytest.mark.parametrize("recipe", [{"recompute": "full"}, {"recompute": "selective"}], ids=str)
def test_recomputing_keeps_documents_apart(worlds, masked_alone, spec, recipe):
    job = replace(make_job(model=BYTES, layout={"dp_shard": 2}, num_steps=3, **recipe), data=spec)
    assert worlds[2].run(run, job)[0].losses == pytest.approx(masked_alone.losses, rel=1e-5)


def test_documents_that_see_each_other_learn_other_things(worlds, masked_alone, spec):
    job = replace(make_job(model=BYTES, num_steps=3), data=replace(spec, crosses_documents=True))
    assert worlds[1].run(run, job)[0].losses != pytest.approx(masked_alone.losses, rel=1e-4)


GPT_OSS = {**probed_fields("gpt_oss", has_windows=True), "vocab_size": 320}


@pytest.mark.parametrize("precision", representatives(("fp32", "bf16-mixed"), ("fp32",)))
def test_a_model_of_transformers_with_an_eager_kernel_and_windows_learns_alike_when_divided(worlds, spec, precision):
    job = make_job(model=GPT_OSS, num_steps=3, attention="eager", precision=precision, recompute="full")
    alone, *_ = worlds[1].run(run, replace(job, data=spec))
    job = make_job(model=GPT_OSS, layout={"dp_shard": 2}, num_steps=3, attention="eager", precision=precision)
    for result in worlds[2].run(run, replace(job, data=spec)):
        assert result.losses == pytest.approx(alone.losses, rel=1e-5 if precision == "fp32" else 1e-2)
    assert alone.losses[-1] < alone.losses[0]
