"""A plan the runtime would have to ignore a part of is refused, with a fix that makes it one it carries out."""

from dataclasses import replace
from typing import get_args

import pytest

from shapes import plan
from shardwise.errors import PlanError
from shardwise.families import read_model
from shardwise.launch.run import run_job
from shardwise.launch.support import (
    GAPS,
    require_attention,
    require_base,
    require_documents,
    require_generation,
    require_supported,
)
from shardwise.layout import Layout
from shardwise.recipe import Adapter
from shardwise.train.job import CheckpointSpec, DataSpec, ValidationSpec
from train.models import LLAMA, make_job

MODEL = read_model("llama-3.1-8b")


def made(*, layout=None, **recipe):
    return plan(MODEL, engine="native", layout=Layout(**(layout or {})), seq_len=4096, **recipe)


@pytest.mark.parametrize(
    "asked",
    [
        {"offload": "nvme", "layout": {"dp_shard": 2}},
        {"adapter": "qlora", "layout": {"tp": 64}},
        {"attention_kernel": "fa1"},
        {"attention_kernel": "fa3"},
        {"attention_kernel": "flex"},
        {"attention_kernel": "cudnn", "layout": {"cp": 2}},
        {"layout": {"tp": 2, "sequence_parallel": True, "async_tensor_parallel": True}},
    ],
    ids=str,
)
def test_what_would_be_ignored_is_refused(asked):
    with pytest.raises(PlanError) as raised:
        require_supported(made(**asked))
    assert raised.value.code == "train-not-supported"


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"adapter": "lora"},
        {"attention_kernel": "cudnn"},
        {"adapter": "qlora"},
        {"offload": "optimizer"},
        {"optimizer": "muon"},
        {"precision": "fp8-mixed"},
    ],
    ids=str,
)
def test_what_the_runtime_carries_out_is_not_refused(asked):
    require_supported(made(layout={"dp_shard": 8}, **asked))


@pytest.mark.parametrize(
    ("schedule", "recompute"),
    [
        ("zb-h1", "full"),
        ("zb-h1", "selective"),
        ("zbv", "selective"),
        ("dualpipev", "selective"),
        ("1f1b", "selective"),
    ],
)
def test_what_pipelines_recompute_is_carried_out(schedule, recompute):
    require_supported(made(layout={"pp": 2, "schedule": schedule}, recompute=recompute))


def test_a_tied_table_in_a_v_shaped_pipeline_is_refused():
    tied = made(layout={"pp": 2, "schedule": "zbv"})
    with pytest.raises(PlanError, match="tied embeddings"):
        require_supported(replace(tied, model=replace(MODEL, tie_word_embeddings=True)))


def test_every_gap_has_a_fix():
    assert all(gap.fix.startswith("set ") for gap in GAPS)


def test_eager_attention_is_computed_by_transformers_alone():
    job = make_job(attention="eager")
    with pytest.raises(PlanError) as raised:
        require_attention(job)
    assert raised.value.fix.endswith("--implementation transformers")
    require_attention(replace(job, implementation="transformers"))


@pytest.mark.parametrize(
    ("data", "is_kept_apart"),
    [
        ({}, False),
        ({"source": "a.txt"}, False),
        ({"source": "a.txt", "crosses_documents": False}, True),
        ({"source": "a.txt", "packing": "documents"}, True),
    ],
    ids=str,
)
def test_a_plan_of_packed_documents_is_run_with_documents_kept_apart(data, is_kept_apart):
    job = replace(make_job(mean_document_len=7), data=DataSpec(**data))
    require_documents(replace(make_job(), data=DataSpec(**data)))
    if is_kept_apart:
        require_documents(job)
        return
    with pytest.raises(PlanError) as raised:
        require_documents(job)
    assert raised.value.code == "train-documents"


@pytest.mark.parametrize(("layout", "can"), [({"tp": 2}, True), ({"pp": 2}, False), ({"cp": 2}, False)], ids=str)
def test_prompts_are_continued_where_ranks_have_whole_sequences_and_the_whole_model(layout, can):
    job = make_job(layout=layout, chunk_layers=(2, 2) if "pp" in layout else ())
    require_generation(job)
    asked = replace(job, validation=ValidationSpec(source="a.txt", every_steps=5, prompts="prompts.txt"))
    if can:
        require_generation(asked)
        return
    with pytest.raises(PlanError, match="writes nothing after prompts under") as raised:
        require_generation(asked)
    assert raised.value.code == "train-generate"


@pytest.mark.parametrize("adapter", get_args(Adapter))
@pytest.mark.parametrize("resume_from", [None, "run"])
@pytest.mark.parametrize("implementation", ["shardwise", "transformers"])
def test_adapters_alone_need_weights_or_a_word_that_there_are_none(adapter, resume_from, implementation):
    def job(**spec):
        checkpoint = CheckpointSpec(resume_from=resume_from, **spec)
        return replace(make_job(adapter=adapter, implementation=implementation), checkpoint=checkpoint)

    require_base(job(initial_weights="base"))
    require_base(job(accepts_random_weights=True))
    if adapter == "none":
        require_base(job())
        return
    with pytest.raises(PlanError, match=f"adapter {adapter} has no weights to adapt") as refused:
        require_base(job())
    assert refused.value.code == "train-random-weights"
    assert "--weights FOLDER" in refused.value.fix
    assert "--random-weights" in refused.value.fix


def test_a_job_with_adapters_and_no_weights_starts_no_process(tmp_path):
    job = replace(make_job(adapter="lora"), run_folder=str(tmp_path))
    with pytest.raises(PlanError, match="adapter lora has no weights to adapt"):
        run_job(job, on_step=lambda record: None)
    assert list(tmp_path.iterdir()) == []


def packed(model, **changes):
    """A job of a model of transformers whose packed documents are kept apart."""
    return replace(make_job(model=model), data=DataSpec(source="a.txt", crosses_documents=False), **changes)


@pytest.mark.parametrize("model_type", ["bamba", "mamba", "qwen3_next", "lfm2", "bloom", "bart"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_family_that_reads_on_across_documents_is_refused_with_them(model_type, device):
    job = packed({"model_type": model_type}, device=device)
    with pytest.raises(PlanError, match=f"{model_type}, as transformers") as raised:
        require_documents(job)
    assert raised.value.code == "train-documents"
    require_documents(replace(job, data=DataSpec(source="a.txt")))


def test_falcon_is_refused_with_documents_where_it_has_linear_biases():
    require_documents(packed({"model_type": "falcon"}))
    with pytest.raises(PlanError, match="falcon"):
        require_documents(packed({"model_type": "falcon", "alibi": True}))


def test_a_family_without_block_masks_keeps_documents_apart_on_gpus_with_eager_attention_alone():
    job = packed({"model_type": "gpt2"}, device="cuda")
    with pytest.raises(PlanError, match="gpt2") as raised:
        require_documents(job)
    assert raised.value.fix == "set attention to eager (--attention eager)"
    require_documents(replace(job, recipe=replace(job.recipe, attention="eager")))
    require_documents(replace(job, device="cpu"))


def test_dropout_inside_attention_is_refused_where_the_kernel_has_none():
    job = packed({"model_type": "gemma3_text", "attention_dropout": 0.1}, device="cuda")
    with pytest.raises(PlanError, match=r"attention_dropout 0\.1"):
        require_documents(job)
    require_documents(replace(job, device="cpu"))
    require_documents(packed({"model_type": "gemma3_text", "attention_dropout": 0.0}, device="cuda"))


def test_our_own_decoder_keeps_documents_apart_on_every_device():
    for device in ("cpu", "cuda"):
        require_documents(packed(LLAMA, device=device))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"is_causal": False}, "is_causal false"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention true"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention all"),
    ],
    ids=str,
)
def test_a_config_that_lets_tokens_see_later_ones_is_refused(fields, said):
    with pytest.raises(PlanError, match=said) as raised:
        require_attention(make_job(model={**LLAMA, **fields}))
    assert raised.value.code == "train-not-supported"


def test_a_config_that_says_what_is_so_anyway_is_not_refused():
    said = {"is_causal": True, "use_bidirectional_attention": None}
    require_attention(make_job(model={**LLAMA, **said}))
    require_attention(make_job(model={"model_type": "gemma4_text", "use_bidirectional_attention": "vision"}))


def test_our_own_decoder_is_not_asked_for_a_window_that_it_has_not():
    windowed = {**LLAMA, "model_type": "mistral", "sliding_window": 8}
    with pytest.raises(PlanError, match="sliding_window"):
        require_attention(make_job(model=windowed, implementation="shardwise"))
    require_attention(make_job(model=windowed))
    require_attention(make_job(implementation="shardwise"))


@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "camembert", "xlm-roberta"])
def test_an_encoder_is_refused_by_name(name):
    with pytest.raises(PlanError, match=f"{name}, whose tokens see") as raised:
        require_supported(replace(made(), model=replace(MODEL, model_type=name)))
    assert raised.value.code == "train-not-supported"
