"""No token sees what it must not: later ones, other sequences, other documents; and it sees what it may.

Every family that transformers builds is probed with every attention kernel that trains it, with and without windows.
The tables of refused families are what the probe finds.
"""

from dataclasses import replace

import pytest
import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from shardwise.families.table import FAMILIES
from shardwise.launch.transformers_models import (
    CARRIES_ACROSS_DOCUMENTS,
    SEES_TOO_MUCH,
    WITHOUT_BLOCK_MASKS,
    carries_across_documents,
)
from shardwise.train import build
from shardwise.train.decoder.config import read_config
from shardwise.train.decoder.model import Decoder
from shardwise.train.huggingface import BLOCK_MASKS, TransformersDecoder
from shardwise.train.initialise import initialise
from shardwise.train.job import DataSpec
from train.causality import SEEN, filled_decoder, probe, probed_fields, twice_as_wide
from train.models import GEMMA, LLAMA, MIXTRAL, make_job
from train.tiny_families import families, readable_families

CPU = torch.device("cpu")
TEN = ("gpt2", "gpt_neo", "mpt", "gemma2", "gemma3_text", "gpt_oss", "mistral", "deepseek_v32", "bert", "qwen3_next")
"""Masks of their own, local layers, ALiBi, eager kernels alone, windows, an indexer, an encoder, and a state."""
NOT_BUILT = frozenset(
    (
        "blt",
        "cohere_compass_text",
        "dots3_note",
        "gemma3n",
        "gemma4",
        "gemma4_assistant",
        "gemma4_unified",
        "gemma4_unified_assistant",
        "llama4",
        "mllama",
        "musicgen",
        "musicgen_melody",
        "qwen4_exp",
    )
)
"""Families of which no small model is built or run here: parts for images and sound, or packages that are missing."""
BREAKS_FLEX = frozenset(("doge",))
"""Declares ``flex_attention``, and a score of its own that torch's compiler does not take."""
needs_the_release_that_was_read = pytest.mark.skipif(
    not transformers.__version__.startswith("5.24."), reason="the tables are those of transformers 5.24"
)


def class_of(model_type):
    return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])


def findings(model_type):
    """What each kernel of a family lets losses depend on, without and with windows."""
    configs = [probed_fields(model_type, has_windows=has_windows) for has_windows in (False, True)]
    kernels = ("eager", "flash") if class_of(model_type)._supports_sdpa else ("eager",)
    return [
        probe(filled_decoder(fields, attention, device=CPU), device=CPU)
        for attention in kernels
        for fields in (configs if configs[0] != configs[1] else configs[:1])
    ]


def assert_tables_are_right(model_type):
    """A family is refused when one of its kernels, with or without windows, sees too much."""
    found = findings(model_type)
    assert all(kernel.is_causal for kernel in found) == (model_type not in SEES_TOO_MUCH), found
    if model_type not in SEES_TOO_MUCH:
        assert all(kernel.own > SEEN for kernel in found), found
        keeps_apart = all(kernel.keeps_documents_apart for kernel in found)
        assert keeps_apart == (model_type not in CARRIES_ACROSS_DOCUMENTS), found


@needs_the_release_that_was_read
@pytest.mark.parametrize("model_type", TEN)
def test_a_family_sees_what_its_table_says(model_type):
    assert_tables_are_right(model_type)


@pytest.mark.families
@needs_the_release_that_was_read
@pytest.mark.parametrize("model_type", sorted({*families()} - {*TEN} - NOT_BUILT))
def test_every_family_sees_what_its_table_says(model_type):
    assert_tables_are_right(model_type)


def test_families_that_cannot_be_probed_are_not_planned():
    assert NOT_BUILT.isdisjoint(FAMILIES)


@pytest.mark.families
@needs_the_release_that_was_read
def test_families_without_block_masks_are_those_that_do_not_declare_them():
    fused = {name for name in families() if class_of(name)._supports_sdpa}
    kept_apart = fused - SEES_TOO_MUCH - CARRIES_ACROSS_DOCUMENTS
    assert {name for name in kept_apart if not class_of(name)._supports_flex_attn} | BREAKS_FLEX == WITHOUT_BLOCK_MASKS


def test_falcon_with_linear_biases_takes_no_mask_of_documents():
    fields = {**probed_fields("falcon"), "alibi": True}
    found = probe(filled_decoder(fields, "eager", device=CPU), device=CPU)
    assert found.is_causal
    assert not found.keeps_documents_apart
    assert carries_across_documents(fields)
    assert not carries_across_documents({**fields, "alibi": False})


@pytest.mark.parametrize("model_type", ["gemma3_text", "llama"])
def test_a_config_can_make_a_causal_family_see_later_tokens(model_type):
    """Why the fields in SEES_LATER are refused."""
    name = "is_causal" if model_type == "llama" else "use_bidirectional_attention"
    fields = {**probed_fields(model_type), name: model_type != "llama"}
    assert not probe(filled_decoder(fields, "eager", device=CPU), device=CPU).is_causal


@pytest.mark.parametrize("model", [LLAMA, MIXTRAL, {**LLAMA, "model_type": "qwen3", "head_dim": 8}], ids=str)
def test_our_own_decoder_sees_what_it_may_alone(model):
    with torch.device("meta"):
        decoder = Decoder(read_config(model), layers=range(model["num_hidden_layers"]))
    initialise(decoder, prefix="", device=CPU, seed=3, std=0.2)

    def prepared(ids, labels, *places):
        decoder.prepare_positions(torch.arange(ids.size(1)))
        return decoder(ids, labels, *places)

    found = probe(prepared, device=CPU)
    assert found.is_causal
    assert found.own > SEEN
    assert found.keeps_documents_apart


@pytest.mark.parametrize(
    ("device", "data", "attention", "kernel"),
    [
        ("cuda", {"crosses_documents": False}, "flash", BLOCK_MASKS),
        ("cuda", {"packing": "documents"}, "flash", BLOCK_MASKS),
        ("cuda", {"crosses_documents": False}, "eager", "eager"),
        ("cuda", {}, "flash", "sdpa"),
        ("cpu", {"crosses_documents": False}, "flash", "sdpa"),
    ],
    ids=str,
)
def test_documents_are_kept_apart_by_block_masks_on_gpus(monkeypatch, device, data, attention, kernel):
    monkeypatch.setattr(TransformersDecoder, "fill_buffers", lambda *_: None)
    job = replace(make_job(model=GEMMA, attention=attention), data=DataSpec(source="a.txt", **data))
    decoder = build._transformers_decoder(job, torch.device(device))
    assert decoder.whole[0].config._attn_implementation == kernel


def test_masks_that_are_added_have_the_type_that_blocks_compute_in():
    job = replace(make_job(model=GEMMA, precision="bf16-mixed"), data=DataSpec(source="a.txt"))
    assert build._transformers_decoder(job, CPU).compute_dtype == torch.bfloat16


def with_block_masks():
    """Families that are trained and whose documents go through block masks on a GPU."""
    left_out = SEES_TOO_MUCH | CARRIES_ACROSS_DOCUMENTS | WITHOUT_BLOCK_MASKS | NOT_BUILT
    return sorted(name for name in readable_families() if name not in left_out and class_of(name)._supports_sdpa)


@pytest.mark.gpu
@pytest.mark.families
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("has_windows", [False, True], ids=["plain", "windows"])
@pytest.mark.parametrize("model_type", with_block_masks())
def test_block_masks_keep_documents_apart(model_type, has_windows):
    cuda = torch.device("cuda")
    fields = twice_as_wide(probed_fields(model_type, has_windows=has_windows))
    found = probe(filled_decoder(fields, "flash", device=cuda, has_block_masks=True), device=cuda)
    assert found.is_causal, found
    assert found.own > SEEN, found
    assert found.keeps_documents_apart, found
