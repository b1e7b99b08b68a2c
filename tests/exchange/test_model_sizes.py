"""What files say of a model's sizes is set against the model that is named."""

import pytest

from shardwise.ask.foreign_plan import read_foreign
from shardwise.errors import PlanError
from shardwise.families import read_model

SIZES = {
    "num-layers": 80,
    "hidden-size": 8192,
    "ffn-hidden-size": 28672,
    "num-attention-heads": 64,
    "num-query-groups": 8,
    "vocab-size": 128256,
}
REST = (
    "--group-query-attention --swiglu --normalization RMSNorm --tensor-model-parallel-size 8 --micro-batch-size 2 "
    "--global-batch-size 64 --seq-length 4096 --bf16"
)


def run_of(tmp_path, model, **sizes):
    script = tmp_path / "meg.sh"
    options = " ".join(f"--{name} {value}" for name, value in {**SIZES, **sizes}.items())
    script.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {options} {REST}\n", encoding="utf-8")
    return read_foreign([script], model=model, cluster="8xh100-sxm", settings={})


def test_the_model_of_the_files_contradicts_nothing(tmp_path):
    assert run_of(tmp_path, "llama-3.1-70b").plan().model.num_hidden_layers == 80
    # A table may be padded for tensor parallelism, or be published padded.
    assert not run_of(tmp_path, "llama-3.1-70b", **{"vocab-size": 128000}).reading.contradictions


@pytest.mark.parametrize(
    ("option", "value", "field", "own"),
    [
        ("num-layers", 40, "num_layers", 80),
        ("hidden-size", 4096, "hidden_size", 8192),
        ("ffn-hidden-size", 11008, "ffn_hidden_size", 28672),
        ("num-attention-heads", 32, "num_heads", 64),
        ("num-query-groups", 4, "num_key_value_heads", 8),
        ("num-experts", 8, "num_experts", 0),
        ("vocab-size", 32000, "vocab_size", 128256),
    ],
)
def test_a_size_that_the_model_does_not_have_is_named_with_both_places(tmp_path, option, value, field, own):
    run = run_of(tmp_path, "llama-3.1-70b", **{option: value})
    (found,) = run.reading.contradictions
    assert (found.first.field, found.first.value, found.first.place) == (field, value, f"meg.sh:--{option}")
    assert (found.second.value, found.second.place) == (own, "--model llama-3.1-70b")
    with pytest.raises(PlanError) as caught:
        run.plan()
    assert caught.value.code == "import-contradiction"
    assert "--model" in caught.value.fix
    assert "--set" not in caught.value.fix  # a size is no field of a plan


ROTARY = "--position-embedding-type rope --untie-embeddings-and-output-weights"


def script_of(tmp_path, options):
    script = tmp_path / "meg.sh"
    script.write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {options}\n", encoding="utf-8")
    return read_foreign([script], model=None, cluster="8xh100-sxm", settings={})


def test_a_model_that_no_file_names_is_read_from_its_sizes(tmp_path):
    sizes = " ".join(f"--{name} {value}" for name, value in SIZES.items())
    plan = script_of(tmp_path, f"{sizes} {REST} {ROTARY}").plan()
    assert plan.model.name == "llama-like model of meg.sh"
    assert plan.model.num_params == read_model("llama-3.1-70b").num_params


def test_a_model_of_neither_kind_stays_open(tmp_path):
    sizes = " ".join(f"--{name} {value}" for name, value in SIZES.items())
    assert script_of(tmp_path, f"{sizes} {REST}").model is None  # learned positions beside SwiGLU
    assert script_of(tmp_path, f"{sizes} {REST} {ROTARY} --num-experts 8").model is None


def test_plain_blocks_with_learned_positions_are_those_of_gpt_2(tmp_path):
    sizes = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --vocab-size 50257"
    run = script_of(tmp_path, f"{sizes} --max-position-embeddings 1024 --micro-batch-size 1 --seq-length 1024 --bf16")
    assert run.model_name == "gpt2-like model of meg.sh"
    assert run.model.num_params == read_model("gpt2").num_params
