"""Reading and writing plan files: every form, every default, and back again without a difference."""

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings

import shardwise as sw
from shardwise.engines.table import EngineName
from shardwise.errors import ModelError, PlanError, RecipeError
from shardwise.fields import plan_fields
from shardwise.layout import Layout
from shardwise.plan_file import plan_to_json, read_plan, recipe_assumptions
from shardwise.plan_file.read import numbered_plan_lines, read_numbered_plans
from shardwise.recipe import Recipe
from shardwise.rules import require_valid
from strategies import ENGINES, layouts, recipes

ENGINE_NAMES = get_args(EngineName)
SMALLEST = {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "recipe": {"seq_len": 4096}}

DESIGN_EXAMPLE = """
{"schema": "shardwise.plan/1",
 "model": "llama-3.1-8b",
 "cluster": {"node": "dgx-h100", "num_nodes": 2},
 "recipe": {"seq_len": 8192, "micro_batch_size": 1, "global_batch_size": 16, "precision": "bf16-mixed",
            "optimizer": "adamw", "recompute": "none", "offload": "none",
            "attention": "flash", "compile": true, "activation_offload": false, "tokens": 1e12},
 "layout": {"dp_replicate": 1, "dp_shard": 8, "zero_stage": 3, "tp": 2, "cp": 1, "pp": 1, "vpp": 1, "ep": 1,
            "schedule": "1f1b", "sequence_parallel": true},
 "engine": "native"}
"""

YAML_EXAMPLE = """
model: llama-3.1-8b
cluster: {node: dgx-h100, num_nodes: 2}
recipe:
  seq_len: 8192
  global_batch_size: 16
  tokens: 1e12        # YAML 1.1 reads this as text
layout:
  tp: 2
  dp_shard: -1
"""


def with_layout(layout, engine="native", cluster="16xh100-sxm", model="llama-3.1-8b", **recipe):
    return read_plan(
        {
            "model": model,
            "cluster": cluster,
            "recipe": {"seq_len": 4096, **recipe},
            "layout": layout,
            "engine": engine,
        }
    )


def test_the_example_of_the_contract_is_read_field_by_field():
    plan = read_plan(DESIGN_EXAMPLE)
    assert plan.model.num_params == 8_030_261_248
    assert (plan.cluster.node.id, plan.cluster.num_gpus) == ("dgx-h100", 16)
    assert plan.recipe == Recipe(seq_len=8192, global_batch_size=16, tokens=1e12)
    assert plan.layout == Layout(dp_shard=8, tp=2, zero_stage=3, sequence_parallel=True)
    assert (plan.engine, plan.assumptions) == ("native", ())


def test_json_file_yaml_file_text_and_mapping_read_alike(tmp_path):
    (tmp_path / "plan.json").write_text(DESIGN_EXAMPLE, encoding="utf-8")
    (tmp_path / "plan.yaml").write_text(YAML_EXAMPLE, encoding="utf-8")
    (tmp_path / "plan").write_text(DESIGN_EXAMPLE, encoding="utf-8")
    wanted = read_plan(DESIGN_EXAMPLE)
    assert read_plan(tmp_path / "plan.json") == wanted
    assert read_plan(str(tmp_path / "plan.yaml")) == wanted
    assert read_plan(tmp_path / "plan") == wanted
    assert read_plan(YAML_EXAMPLE) == wanted
    assert read_plan(json.loads(DESIGN_EXAMPLE)) == wanted


def test_a_byte_order_mark_is_no_part_of_the_plan(tmp_path):
    (tmp_path / "plan.json").write_bytes(b"\xef\xbb\xbf" + DESIGN_EXAMPLE.encode())
    assert read_plan(tmp_path / "plan.json") == read_plan(DESIGN_EXAMPLE)


def test_only_model_cluster_and_sequence_length_are_needed():
    plan = read_plan(SMALLEST)
    assert plan.recipe == Recipe(seq_len=4096)
    assert plan.layout == Layout(dp_shard=8, zero_stage=3)
    assert plan.assumptions == (
        "compile=true: what native does unless it is told otherwise",
        "dp_shard=8: what is left of 8 GPUs",
        "zero_stage=3: what native is mostly used with",
    )


def test_null_means_not_given():
    plan = read_plan({**SMALLEST, "layout": {"tp": None}, "engine": None, "schema": "shardwise.plan/1"})
    assert plan == read_plan(SMALLEST)


def test_whole_numbers_may_be_written_as_floats():
    assert read_plan({**SMALLEST, "recipe": {"seq_len": 4096.0, "tokens": 10**12}}).recipe.tokens == 1e12


@pytest.mark.parametrize(
    ("given_layout", "dp_replicate", "dp_shard"),
    [
        ({}, 1, 16),
        ({"tp": 2, "pp": 2}, 1, 4),
        ({"dp_shard": -1, "dp_replicate": 2}, 2, 8),
        ({"dp_shard": 4}, 1, 4),
        ({"dp_replicate": 16}, 16, 1),
        ({"zero_stage": 0}, 16, 1),
        ({"zero_stage": 0, "dp_shard": -1, "dp_replicate": 4}, 4, 4),
        ({"tp": 3}, 1, 5),
    ],
)
def test_data_parallel_ranks_take_what_is_left_of_the_world(given_layout, dp_replicate, dp_shard):
    layout = with_layout(given_layout).layout
    assert (layout.dp_replicate, layout.dp_shard) == (dp_replicate, dp_shard)


@pytest.mark.parametrize(
    ("engine", "given_layout", "offload", "zero_stage"),
    [
        ("native", {}, "none", 3),
        ("torchtitan", {}, "none", 3),
        ("fsdp1", {}, "none", 3),
        ("accelerate", {}, "none", 3),
        ("megatron", {}, "none", 1),
        ("deepspeed", {}, "none", 2),
        ("deepspeed", {"pp": 2}, "none", 1),
        ("deepspeed", {}, "parameters", 3),
        ("deepspeed", {}, "nvme", 3),
        ("native", {"tp": 8, "pp": 2}, "none", 0),
        ("native", {"tp": 8, "cp": 2}, "none", 3),
        ("native", {"dp_replicate": 16}, "none", 0),
        ("native", {"dp_replicate": 16}, "parameters", 3),
        ("deepspeed", {"tp": 16}, "none", 0),
    ],
)
def test_the_zero_stage_is_what_the_engine_is_mostly_used_with(engine, given_layout, offload, zero_stage):
    assert with_layout(given_layout, engine=engine, offload=offload).layout.zero_stage == zero_stage


@pytest.mark.parametrize(
    ("engine", "given_layout", "seq_len", "sequence_parallel"),
    [
        ("native", {"tp": 2}, 4096, True),
        ("megatron", {"tp": 2}, 4096, True),
        ("torchtitan", {"tp": 2}, 4096, True),
        ("native", {"tp": 1}, 4096, False),
        ("native", {"tp": 2}, 4095, False),
        ("native", {"tp": 2, "sequence_parallel": False}, 4096, False),
        ("deepspeed", {"tp": 2}, 4096, False),
        ("accelerate", {"tp": 2}, 4096, False),
    ],
)
def test_sequence_parallelism_follows_tensor_parallelism(engine, given_layout, seq_len, sequence_parallel):
    assert with_layout(given_layout, engine=engine, seq_len=seq_len).layout.sequence_parallel is sequence_parallel


@pytest.mark.parametrize(("given_layout", "expert_tp"), [({"tp": 2}, 2), ({"tp": 2, "ep": 2}, 1), ({}, 1)])
def test_experts_are_divided_over_tp_unless_they_have_ranks_of_their_own(given_layout, expert_tp):
    """Our own trainer keeps each expert whole."""
    assert with_layout(given_layout, model="mixtral-8x7b", engine="torchtitan").layout.expert_tp == expert_tp
    assert with_layout(given_layout, model="mixtral-8x7b").layout.expert_tp == 1
    assert with_layout(given_layout).layout.expert_tp == 1


def test_chunks_on_a_stage_are_interleaved_and_parameters_stay_gathered_under_a_pipeline():
    plan = with_layout({"pp": 4, "vpp": 2})
    assert plan.layout == Layout(
        dp_shard=4, pp=4, vpp=2, zero_stage=3, schedule="interleaved", reshard_after_forward=False
    )
    assert [note.split(":")[0] for note in plan.assumptions] == [
        "compile=true",
        "dp_shard=4",
        "zero_stage=3",
        "schedule=interleaved",
        "reshard_after_forward=false",
    ]
    assert with_layout({"pp": 4, "reshard_after_forward": True}).layout.reshard_after_forward


@pytest.mark.parametrize(
    ("engine", "cluster", "precision"),
    [
        ("native", "aws-p3dn.24xlarge", "fp16-mixed"),
        ("torchtitan", "aws-p3dn.24xlarge", "fp32"),
        ("native", "dgx-h100", "bf16-mixed"),
    ],
)
def test_a_gpu_without_bf16_gets_a_precision_it_can_multiply(engine, cluster, precision):
    plan = with_layout({}, engine=engine, cluster=cluster)
    assert plan.recipe.precision == precision
    assert any("no bf16 matrix unit" in note for note in plan.assumptions) is (cluster != "dgx-h100")
    stated = with_layout({}, engine=engine, cluster=cluster, precision="bf16-mixed")
    assert stated.recipe.precision == "bf16-mixed"


def test_a_part_that_multiplies_bf16_more_slowly_than_fp32_computes_in_fp32():
    """The CPU cores of the examples: 10 steps in the bf16-mixed of a GPU were predicted to take a hundred times as
    long as they do."""
    cores = {"gpus_per_node": 2, "num_nodes": 1}
    rates = {"name": "a core", "memory_gib": 4, "memory_bandwidth_gb_per_s": 6, "scale_up_gb_per_s": 0.7}
    for bf16, precision in ((0.001, "fp32"), (0.3, "bf16-mixed")):
        gpu = {**rates, "vendor": "host", "fp32_tflop_per_s": 0.15, "bf16_tflop_per_s": bf16}
        plan = with_layout({}, cluster={**cores, "gpu": gpu}, model="gpt2")
        assert plan.recipe.precision == precision
        said = "precision=fp32: a core multiplies bf16 more slowly than fp32" in plan.assumptions
        assert said is (precision == "fp32")


@pytest.mark.parametrize(("engine", "is_compiled"), [(engine, engine == "native") for engine in ENGINE_NAMES])
def test_compiling_is_what_the_engine_does_when_nobody_asks(engine, is_compiled):
    """torchtitan@b5bcd76 config/configs.py: CompileConfig.enable is False."""
    plan = with_layout({}, engine=engine)
    assert plan.recipe.compile is is_compiled
    assert plan.assumptions[0].startswith(f"compile={str(is_compiled).lower()}: what {engine} does")
    assert recipe_assumptions(plan) == plan.assumptions[:1]
    stated = with_layout({}, engine=engine, compile=not is_compiled)
    assert stated.recipe.compile is not is_compiled
    assert recipe_assumptions(stated) == ()


@pytest.mark.parametrize(("schedule", "pp", "is_compiled"), [("1f1b", 4, True), ("zbv", 4, False), ("zbv", 1, True)])
def test_a_schedule_that_splits_the_backward_pass_is_left_uncompiled(schedule, pp, is_compiled):
    plan = with_layout({"pp": pp, "schedule": schedule}, global_batch_size=64)
    assert plan.recipe.compile == is_compiled
    require_valid(plan)


@pytest.mark.parametrize(
    ("model", "seq_len", "learned"),
    [
        ("gpt2", 1024, 1024),
        ("opt-13b", 2048, 2048),
        ("bert-base", 512, 512),
        ("roberta-base", 512, 514),
        ("pythia-70m", 2048, 2048),
        ("llama-2-7b", 4096, 4096),
    ],
)
def test_few_positions_shorten_the_fallback_of_the_sequence_length(model, seq_len, learned):
    plan = read_plan({"model": model, "cluster": "8xh100-sxm", "recipe": {}}, fallback_seq_len=8192)
    assert plan.recipe.seq_len == seq_len
    assert plan.assumptions[0] == f"seq_len={seq_len}: {model} has {learned} positions"
    assert require_valid(plan) is None


def test_the_fallback_of_the_sequence_length_is_for_plans_that_give_none():
    longer = read_plan({"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "recipe": {}}, fallback_seq_len=8192)
    assert longer.recipe.seq_len == 8192
    assert read_plan(SMALLEST, fallback_seq_len=8192).recipe.seq_len == 4096
    with pytest.raises(PlanError) as caught:
        read_plan({"model": "gpt2", "cluster": "8xh100-sxm", "recipe": {}})
    assert caught.value.code == "plan-missing-key"


def test_adapters_are_trained_on_shorter_sequences_where_nobody_says_how_long():
    """8,192 tokens a sequence were assumed for QLoRA on a gaming card; recipes for adapters cut off at 2,048."""
    tuned = {"model": "qwen3-8b", "cluster": "1xrtx-4090", "recipe": {"adapter": "qlora"}}
    plan = read_plan(tuned, fallback_seq_len=8192)
    assert plan.recipe.seq_len == 2048
    assert plan.assumptions[0] == "seq_len=2048: recipes for adapters cut examples off there"
    assert read_plan({**tuned, "model": "gpt2"}, fallback_seq_len=8192).recipe.seq_len == 1024


@pytest.mark.parametrize("adapter", ["lora", "qlora"])
def test_rank_and_targets_of_adapters_are_assumed_where_nobody_gives_them(adapter):
    """They were taken in silence, and all-linear trains about three times as many weights."""
    fields = {"seq_len": 512, "adapter": adapter}
    asked = sw.predict("llama-3.2-1b", "1xh100-sxm", **fields)
    given = sw.predict("llama-3.2-1b", "1xh100-sxm", **fields, lora_rank=16, lora_targets="attention")
    assert {"lora_rank=16", "lora_targets=attention"} <= {one.partition(":")[0] for one in asked.plan.assumptions}
    assert not any("lora" in one for one in given.plan.assumptions)
    assert f"{adapter} of rank 16* on attention*," in " ".join(asked.text().split())
    assert f"{adapter} of rank 16 on attention," in " ".join(given.text().split())


def test_overrides_win_before_anything_left_open_is_filled():
    plan = read_plan(YAML_EXAMPLE, overrides={"layout": {"tp": 4}, "recipe": {"micro_batch_size": 2}})
    assert (plan.layout.tp, plan.layout.dp_shard) == (4, 4)
    assert (plan.recipe.micro_batch_size, plan.recipe.global_batch_size) == (2, 16)
    assert read_plan(SMALLEST, overrides={"engine": "megatron"}).layout.zero_stage == 1
    assert read_plan(SMALLEST, overrides={"cluster": "4xh100-sxm"}).layout.dp_shard == 4


def test_a_config_beside_the_plan_is_found_from_the_plan(tmp_path):
    config = {
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
    }
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "plan.json").write_text(json.dumps({**SMALLEST, "model": "models/config.json"}), encoding="utf-8")
    plan = read_plan(tmp_path / "plan.json")
    assert plan.model.num_params == 124_439_808
    assert read_plan(plan_to_json(plan)) == plan


def test_every_field_of_recipe_and_layout_can_be_written_in_a_plan_file():
    for record in (Recipe, Layout):
        assert [field.name for field in plan_fields(record)] == [field.name for field in fields(record)]


def test_no_name_of_another_tool_means_two_fields():
    names = [name for row in (*plan_fields(Recipe), *plan_fields(Layout)) for name in (row.name, *row.synonyms)]
    assert sorted({name for name in names if names.count(name) > 1}) == []


@given(recipes(), layouts(), ENGINES)
@settings(max_examples=200)
def test_writing_and_reading_changes_nothing(recipe, layout, engine):
    written_layout = (
        layout if layout.stage_layers is None or min(layout.stage_layers) > 0 else replace(layout, stage_layers=None)
    )
    plan = replace(read_plan(SMALLEST), recipe=recipe, layout=written_layout, engine=engine)
    written = plan_to_json(plan)
    again = read_plan(json.loads(json.dumps(written)))
    assert again == plan
    assert again.assumptions == ()
    assert json.dumps(plan_to_json(again)) == json.dumps(written)


def test_fields_left_open_are_left_out_of_the_written_plan():
    written = plan_to_json(read_plan(SMALLEST))
    assert list(written) == ["schema", "model", "cluster", "recipe", "layout", "engine"]
    assert "global_batch_size" not in written["recipe"]
    assert "stage_layers" not in written["layout"]
    assert written["model"] == "llama-3.1-8b"


@pytest.mark.parametrize("part", ["model", "cluster"])
def test_a_part_built_by_hand_cannot_be_written(part):
    plan = read_plan(SMALLEST)
    plan = replace(plan, **{part: replace(getattr(plan, part), spec_json="")})
    with pytest.raises(PlanError, match=f"the {part} .* was built by hand") as caught:
        plan_to_json(plan)
    assert caught.value.code == "plan-hand-made"


@pytest.mark.parametrize("name", ["gpt2", "llama-3.1-70b", "mixtral-8x7b", "deepseek-v3-671b", "70B"])
def test_models_come_back_as_they_were_named(name):
    plan = read_plan({**SMALLEST, "model": name})
    assert read_plan(plan_to_json(plan)) == plan


def test_lines_are_answered_in_order_and_errors_take_their_place(tmp_path):
    lines = [json.dumps(SMALLEST), "", "{", json.dumps({**SMALLEST, "engine": "megatron"}), "   ", "[1]", "{}"]
    (tmp_path / "plans.jsonl").write_text("\n".join(lines), encoding="utf-8")
    answers = [answer for _, answer in read_numbered_plans(tmp_path / "plans.jsonl")]
    assert [getattr(answer, "engine", None) or answer.code for answer in answers] == [
        "native",
        "plan-syntax",
        "megatron",
        "plan-not-a-mapping",
        "plan-missing-key",
    ]
    assert answers[1].message.startswith("line 3 ")
    assert answers[3].message.startswith("line 6 ")


def test_a_line_too_long_for_a_plan_is_one_error_and_the_next_line_is_read(tmp_path):
    path = tmp_path / "plans.jsonl"
    path.write_bytes(b'{"model": "' + b"x" * 3_000_000 + b'"}\n' + json.dumps(SMALLEST).encode() + b"\n\xff\xfe\n")
    answers = [answer for _, answer in read_numbered_plans(path)]
    assert [getattr(answer, "code", "a plan") for answer in answers] == ["plan-too-large", "a plan", "plan-not-text"]


def test_equal_models_and_clusters_are_shared_between_lines():
    lines = [json.dumps(SMALLEST), json.dumps({**SMALLEST, "engine": "megatron"})]
    (_, first), (_, second) = numbered_plan_lines(lines)
    assert first.model is second.model
    assert first.cluster is second.cluster


def test_a_missing_file_of_plans_says_so():
    with pytest.raises(PlanError, match="cannot be read: No such file") as caught:
        next(read_numbered_plans(Path("nowhere.jsonl")))
    assert caught.value.code == "plan-not-found"


def test_i23_large_whole_numbers_may_be_written_as_people_write_them():
    """DeepSpeed configs write 5e8 for integers; a plan takes the same in JSON and in YAML."""
    assert read_plan('{"model": "gpt2", "cluster": "h100-sxm", "recipe": {"seq_len": 1e3}}').recipe.seq_len == 1000
    text = "model: gpt2\ncluster: h100-sxm\nrecipe: {seq_len: 1.0e+3, tokens: 5e8}"
    assert read_plan(text).recipe == Recipe(seq_len=1000, tokens=500_000_000.0)


def test_i25_an_unquoted_no_of_yaml_is_understood_and_answered():
    """YAML 1.1 reads ``no`` as false: the answer says which word to write."""
    with pytest.raises(RecipeError) as caught:
        read_plan("model: gpt2\ncluster: h100-sxm\nrecipe: {seq_len: 1024, offload: no}")
    assert caught.value.fix == 'write offload: "none"'
    assert not read_plan("model: gpt2\ncluster: h100-sxm\nrecipe: {seq_len: 1024, compile: no}").recipe.compile


YAML_WORDS = [
    ("010", 10),
    ("0o10", 8),
    ("0x10", 16),
    ("+12", 12),
    ("1e3", 1000),
]


@pytest.mark.parametrize(("text", "seq_len"), YAML_WORDS)
def test_numbers_are_read_as_yaml_1_2_reads_them(text, seq_len):
    """YAML 1.2.2, section 10.3.2; YAML 1.1 reads 010 as 8 and 1e3 as a text."""
    assert read_plan(f"model: gpt2\ncluster: h100-sxm\nrecipe: {{seq_len: {text}}}").recipe.seq_len == seq_len


@pytest.mark.parametrize("text", ["1:30", "1_000", "2001-12-14", "0b11", "1,000"])
def test_what_only_yaml_1_1_reads_as_a_number_is_a_text_and_refused(text):
    """1:30 is 90 in base 60 there."""
    with pytest.raises(RecipeError) as caught:
        read_plan(f"model: gpt2\ncluster: h100-sxm\nrecipe:\n  seq_len: {text}\n")
    assert caught.value.code == "plan-wrong-type"


@pytest.mark.parametrize("model_type", ["mamba2", "bamba", "granitemoehybrid"])
def test_a_config_may_be_infinite_where_nobody_reads_it(model_type):
    """transformers 5.24.0: to_dict() of these families holds "time_step_limit": [0.0, Infinity]."""
    config = {"model_type": model_type, "time_step_limit": [0.0, float("inf")]}
    bare = read_plan({**SMALLEST, "model": {"model_type": model_type}})
    for source in ({**SMALLEST, "model": config}, json.dumps({**SMALLEST, "model": config})):
        plan = read_plan(source)
        assert plan.model.num_params == bare.model.num_params
        assert read_plan(json.loads(json.dumps(plan_to_json(plan), allow_nan=False))).model == plan.model


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_of_the_config_that_is_read_has_to_be_finite(value):
    with pytest.raises(ModelError) as caught:
        read_plan({**SMALLEST, "model": {"model_type": "mamba2", "num_hidden_layers": value}})
    assert caught.value.code == "model-field-type"
