"""Every published row is reproduced to the parameter: total, tied, embedding, routed, active, vision."""

import pytest

from families.rows import published_rows
from shardwise.families import read_model

ROWS = published_rows()


@pytest.mark.parametrize("row", ROWS, ids=[row["model"] for row in ROWS])
def test_every_count_of_a_published_row_is_exact(row):
    model = read_model(row["model"])
    counted = {
        "total_params": model.num_params,
        "input_embedding_params": model.num_embedding_params,
        "vision_or_projector_params": model.num_side_params,
        "routed_expert_params": model.num_routed_params,
        "n_routed_experts": model.moe.num_experts if model.moe else 0,
        "experts_per_token": model.moe.num_experts_per_tok if model.moe else 0,
        "active_params_incl_embeddings": model.num_active_params,
    }
    assert counted == {name: int(row[name]) for name in counted}
    assert str(model.tie_word_embeddings) == row["tied_embeddings"]


@pytest.mark.parametrize(
    ("name", "num_params"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-xl", 1_557_611_200),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-4b", 4_022_468_096),
        ("t5-base", 222_903_552),
        ("deepseek-v3", 671_026_404_352),
        ("qwen2-vl-7b", 8_291_375_616),
        ("llama-3.2-11b-vision", 10_670_220_835),
        ("mamba-2.8b", 2_768_345_600),
        ("bloom-7b1", 7_069_016_064),
        ("deepseek-v2", 235_741_434_880),
        ("chatglm3-6b", 6_243_584_000),
        ("internlm2-7b", 7_737_708_544),
    ],
)
def test_well_known_models_have_their_published_count(name, num_params):
    """FORMULAS of the published literature and the parameter counts of the checkpoints on the Hub."""
    assert read_model(name).num_params == num_params


def test_deepseek_v3_passes_37_billion_parameters_per_token():
    """README: 37B active. With both embedding tables 37.55B, without the input table 36.63B."""
    model = read_model("deepseek-v3")
    assert model.num_active_params == 37_552_282_624
    assert model.num_active_params - model.num_embedding_params == 36_625_603_584


def test_router_correction_biases_are_buffers_and_not_counted():
    """DeepSeek-V3 keeps 58 x 256 of them; with them the count would be 671,026,419,200."""
    assert 671_026_419_200 - read_model("deepseek-v3").num_params == 58 * 256


def test_multi_token_prediction_blocks_are_not_counted():
    config = {"model_type": "deepseek_v3", "num_nextn_predict_layers": 1}
    without = {"model_type": "deepseek_v3", "num_nextn_predict_layers": 0}
    assert read_model(config).num_params == read_model(without).num_params
