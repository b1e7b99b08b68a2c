"""The best published run of a plan's kind, and the predictions that lie above it."""

import pytest

import shardwise as sw
from shardwise.predict.published import best_published, published_below

H100 = ("llama-3.1-8b", "8xh100-sxm")
ASKED = {"seq_len": 8192, "dp_shard": 8, "global_batch_size": 32, "micro_batch_size": 2}


def test_fms_has_the_fastest_published_bf16_run_of_a_dense_model_near_8b_on_h100():
    """9,600 tokens/s per GPU of a 7B at 4,096 tokens on 96 H100: foundation-model-stack/fms-fsdp, README.md."""
    best = best_published(sw.predict(*H100, **ASKED).plan)
    assert (best.id, best.num_gpus, best.tokens_per_s_per_gpu) == ("FMSFSDP-005", 96, 9600)
    assert best.mfu_fraction == pytest.approx(0.416, abs=0.001)


def test_a_prediction_whose_whole_band_is_faster_names_the_run_in_one_sentence():
    answer = sw.predict(*H100, **ASKED)
    assert published_below(answer.plan, answer.prediction).id == "FMSFSDP-005"
    said = "Caution: the best published run of its kind has MFU 41.6% (FMSFSDP-005: foundation-model-stack/"
    assert said in " ".join(answer.text().split())


@pytest.mark.parametrize(
    "slower",
    [{"recompute": "full", "compile": False, "attention": "eager"}, {"precision": "fp32"}],
    ids=["below the run", "a share of a lower peak"],
)
def test_a_prediction_that_is_no_faster_says_nothing(slower):
    answer = sw.predict(*H100, **{**ASKED, "micro_batch_size": 1, **slower})
    assert published_below(answer.plan, answer.prediction) is None
    assert "published run" not in answer.text()


@pytest.mark.parametrize("cluster", ["1xrtx-4090", "8xmi300x"])
def test_nothing_is_said_where_nobody_published_a_run_of_the_kind(cluster):
    assert best_published(sw.predict("qwen3-0.6b", cluster, seq_len=4096).plan) is None
