"""Made-up configs with distinct sizes, counted independently by transformers, for every family and its switches."""

from collections import Counter

import pytest

from families.rows import made_up
from shardwise.families import read_model
from shardwise.families.table import FAMILIES
from shardwise.families.wrappers import WRAPPERS

CASES = made_up()
WITHOUT_A_CLASS = {"qwen", "baichuan", "internlm", "internlm2", "chatglm", "minicpm", "orion", "deepseek", "generic"}
"""Families that load as remote code; their counts are tested against their checkpoints."""

INSIDE_WRAPPERS = {
    name for name in FAMILIES if name.endswith(("_vl_text", "_vl_moe_text", "v_moe_text", "_text_model"))
}
SIBLINGS = {"camembert"}
"""Same classes as another family."""


@pytest.mark.parametrize("case", CASES, ids=[case.label for case in CASES])
def test_total_equals_the_class_of_the_family(case):
    assert read_model(case.config).num_params == case.num_params


def test_every_family_and_every_wrapper_has_a_case():
    covered = {str(case.config["model_type"]) for case in CASES}
    assert set(FAMILIES) - WITHOUT_A_CLASS - INSIDE_WRAPPERS - SIBLINGS <= covered
    assert set(WRAPPERS) <= covered


def test_no_case_is_listed_twice():
    assert max(Counter(str(case.config) for case in CASES).values()) == 1


@pytest.mark.parametrize(
    ("config", "num_params"),
    [
        (
            {
                "model_type": "qwen",
                "hidden_size": 4096,
                "intermediate_size": 22016,
                "kv_channels": 128,
                "vocab_size": 151936,
            }
            | {"num_attention_heads": 32, "num_hidden_layers": 32},
            7_721_324_544,
        ),
        (
            {
                "model_type": "internlm2",
                "bias": False,
                "hidden_size": 4096,
                "intermediate_size": 14336,
                "vocab_size": 92544,
            }
            | {"num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8},
            7_737_708_544,
        ),
        (
            {"model_type": "deepseek", "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408}
            | {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1}
            | {"num_attention_heads": 16, "num_hidden_layers": 28, "vocab_size": 102400},
            16_375_728_128,
        ),
        (
            {"model_type": "minicpm", "hidden_size": 2304, "intermediate_size": 5760, "vocab_size": 122753}
            | {"num_attention_heads": 36, "num_hidden_layers": 40, "num_key_value_heads": 36},
            2_724_880_896,
        ),
    ],
    ids=["qwen-7b", "internlm2-7b", "deepseek-moe-16b", "minicpm-2b"],
)
def test_families_loaded_as_remote_code_have_the_count_of_their_checkpoint(config, num_params):
    assert read_model(config).num_params == num_params
